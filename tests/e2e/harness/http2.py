"""A minimal HTTP/2 client for behaviour that no gRPC library offers: calls without a message, unfinished messages, windows of 0."""

import socket
import struct

DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_HEADERS = 1, 4
INITIAL_WINDOW = 4
FRAME_MAX = 16384


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name, value):
    """A literal header field, not indexed and without Huffman coding (RFC 7541)."""
    assert len(name) < 127 and len(value) < 127
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Peer:
    def __init__(self, path, window=65535):
        """window: the flow-control window of each stream, for data from the daemon."""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.settimeout(60)
        self.streams, self.left, self.initial, self.received = 0, {0: 65535}, 65535, b""
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, window)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def open(self, method):
        """Sends the headers of a call and nothing else. Returns the stream's number."""
        stream = 2 * self.streams + 1
        self.streams += 1
        self.left[stream] = self.initial
        fields = {b":method": b"POST", b":scheme": b"http", b":path": method.encode(), b":authority": b"localhost",
                  b"te": b"trailers", b"content-type": b"application/grpc"}
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream, b"".join(map(header, fields, fields.values()))))
        return stream

    def send(self, stream, message, length=None):
        """Sends a gRPC message within the flow-control windows. length: the length to announce instead of the true one."""
        data = b"\0" + struct.pack(">I", len(message) if length is None else length) + message
        while data:
            size = min(self.left[0], self.left[stream], FRAME_MAX, len(data))
            if size <= 0:
                self.take_frame()
                continue
            self.socket.sendall(frame(DATA, 0, stream, data[:size]))
            self.left[0] -= size
            self.left[stream] -= size
            data = data[size:]

    def take_frame(self):
        """Reads one frame and applies its changes of the windows. Returns (kind, stream, payload)."""
        head = self._take(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        payload = self._take(int.from_bytes(head[:3], "big"))
        if kind == WINDOW_UPDATE:
            self.left[stream] = self.left.get(stream, self.initial) + int.from_bytes(payload, "big")
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            for setting, value in struct.iter_unpack(">HI", payload):
                if setting == INITIAL_WINDOW:
                    self.left = {s: left + (value - self.initial if s else 0) for s, left in self.left.items()}
                    self.initial = value
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        return kind, stream, payload

    def _take(self, length):
        while len(self.received) < length:
            data = self.socket.recv(65536)
            assert data, "the daemon closed the connection"
            self.received += data
        taken, self.received = self.received[:length], self.received[length:]
        return taken

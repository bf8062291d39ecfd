"""Certificates for the tests of TLS, made with the openssl program."""

import datetime
import os
import pathlib
import subprocess

CONFIG = """
[ca]
default_ca = here
[here]
database = {folder}/index.txt
serial = {folder}/serial
new_certs_dir = {folder}
certificate = {folder}/ca.crt
private_key = {folder}/ca.key
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
"""
CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
LOCAL = "DNS:localhost,IP:127.0.0.1,IP:::1"


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def moment(seconds):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)).strftime("%y%m%d%H%M%SZ")


class Issued:
    """A certificate and its key as files, and their bytes for grpcio."""

    def __init__(self, crt, key):
        self.crt, self.key = pathlib.Path(crt), pathlib.Path(key)

    def bytes(self):
        return self.key.read_bytes(), self.crt.read_bytes()

    def flags(self):
        return ["--tls-cert", str(self.crt), "--tls-key", str(self.key)]

    def install(self, other):
        """Puts the other pair into the place of this one: the certificate first, as programs that renew certificates do."""
        for mine, new in ((self.crt, other.crt), (self.key, other.key)):
            temporary = mine.with_suffix(".tmp")
            temporary.write_bytes(new.read_bytes())
            os.replace(temporary, mine)


class Authority:
    def __init__(self, folder, name="ca"):
        self.folder = pathlib.Path(folder) / name
        self.folder.mkdir(parents=True)
        self.crt = self.folder / "ca.crt"
        self.count = 0
        openssl("req", "-x509", *CURVE, "-days", 3650, "-subj", f"/CN={name}", "-keyout", self.folder / "ca.key", "-out", self.crt)
        (self.folder / "index.txt").touch()
        (self.folder / "serial").write_text("1000\n")
        (self.folder / "ca.cnf").write_text(CONFIG.format(folder=self.folder))

    def issue(self, names=LOCAL, usage=None, begins=-3600, expires=30 * 86400, name=None):
        self.count += 1
        stem = self.folder / (name or f"issued{self.count}")
        request, extensions, issued = stem.with_suffix(".csr"), stem.with_suffix(".ext"), Issued(f"{stem}.crt", f"{stem}.key")
        openssl("req", *CURVE, "-subj", f"/CN={stem.name}", "-keyout", issued.key, "-out", request)
        extensions.write_text("basicConstraints=CA:FALSE\n" + (f"subjectAltName={names}\n" if names else "") +
                              (f"extendedKeyUsage={usage}\n" if usage else ""))
        openssl("ca", "-batch", "-notext", "-config", self.folder / "ca.cnf", "-in", request, "-out", issued.crt, "-extfile", extensions,
                "-startdate", moment(begins), "-enddate", moment(expires))
        return issued

"""Errors as a caller sees them: status, ErrorInfo, BadRequest and RetryInfo, from trailing metadata or from an answer of Stream."""

import contextlib

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2


class Failure:
    def __init__(self, code, message, status):
        self.code, self.message, self.status = code, message, status
        self.info = self._detail(error_details_pb2.ErrorInfo)
        self.retry = self._detail(error_details_pb2.RetryInfo)
        bad = self._detail(error_details_pb2.BadRequest)
        self.fields = [violation.field for violation in bad.field_violations] if bad else []

    def _detail(self, kind):
        for detail in self.status.details if self.status else ():
            message = kind()
            if detail.Unpack(message):
                return message
        return None

    @property
    def reason(self):
        return self.info.reason if self.info else None

    @property
    def retry_seconds(self):
        return None if self.retry is None else self.retry.retry_delay.seconds + self.retry.retry_delay.nanos / 1e9

    def __repr__(self):
        return f"Failure({self.code}, {self.reason}, fields={self.fields}, {self.message!r})"


def failure_of_call(error):
    status = None
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            assert status.code == error.code().value[0], "the status details and the call have different codes"
            assert status.message == error.details(), "the status details and the call have different messages"
    return Failure(error.code().name, error.details(), status)


def failure_of_answer(answer):
    return Failure(code_pb2.Code.Name(answer.error.code), answer.error.message, answer.error)


class Raised:
    failure = None


@contextlib.contextmanager
def raises(code=None, reason=None, field=None):
    """with raises("NOT_FOUND", "LAYER_UNKNOWN") as raised: ... ; raised.failure"""
    raised = Raised()
    try:
        yield raised
    except grpc.RpcError as error:
        raised.failure = failure_of_call(error)
    assert raised.failure is not None, "the call succeeded, but an error was expected"
    check(raised.failure, code, reason, field)


def check(failure, code=None, reason=None, field=None):
    if code is not None:
        assert failure.code == code, failure
    if reason is not None:
        assert failure.reason == reason, failure
        assert failure.info.domain == "expertd", failure
        assert failure.message, "the error has no message"
    if field is not None:  # the field itself, or a member of it: hidden, hidden.shape
        assert any(f"{named}.".startswith(f"{field}.") for named in failure.fields), failure


def refused_alone_and_in_a_stream(client, ask, wrong):
    """wrong: list of (change, reason, field). Each change must turn a request ask(id=…) into one that is refused with this reason and
    field, by Forward and in a stream. An unchanged request in that stream must get the same answer as alone."""
    right, requests = client.forward(ask()).output.data, []
    for change, reason, field in wrong:
        request = ask(id=len(requests) + 1)
        change(request)
        requests.append(request)
        with raises("INVALID_ARGUMENT", reason, field):
            client.forward(request)
    last = len(requests) + 1
    answers = {answer.id: answer for answer in client.stream([*requests, ask(id=last)])}
    for request, (_, reason, field) in zip(requests, wrong):
        check(failure_of_answer(answers[request.id]), "INVALID_ARGUMENT", reason, field)
    assert answers[last].output.data == right

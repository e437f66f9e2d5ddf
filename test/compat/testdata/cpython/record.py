# SPDX-License-Identifier: Apache-2.0
"""record.py RESULTS ARG...: `python3 -m test ARG...` with one line of JSON in RESULTS for each event.

regrtest's own --junit-xml is of no use here: it buffers the output, and in that mode the threaded
tests of test_socket take the whole runner down when one of them fails; and nothing is written at
all when a module hangs. So the result class is observed instead, and nothing else is changed.
"""
import json
import os
import sys

results = os.path.abspath(sys.argv[1])
runner = os.getpid()
waiting = []


def record(test, what, why=""):
    # Some tests fork, and a child whose test failed walks on through the suite as if it were the parent.
    if os.getpid() != runner:
        return
    name = test.id() if callable(getattr(test, "id", None)) else str(test)
    waiting.append(json.dumps({"test": name, "what": what, "why": str(why)[:400]}) + "\n")
    try:
        # Opened anew each time: a descriptor kept open would be counted by the tests that count them.
        with open(results, "a") as f:
            f.writelines(waiting)
    except OSError:  # a test that used up all descriptors; the next record takes these along
        return
    waiting.clear()


def observe(cls, method, what, reason):
    inner = getattr(cls, method)

    def outer(self, test, *args):
        record(test, what, reason(*args))
        return inner(self, test, *args)

    setattr(cls, method, outer)


from test.support.testresult import RegressionTestResult as Result


def exception(err):
    return f"{err[0].__name__}: {err[1]}"


observe(Result, "startTest", "start", lambda: "")
observe(Result, "addSuccess", "pass", lambda: "")
observe(Result, "addExpectedFailure", "pass", lambda err: "")
observe(Result, "addUnexpectedSuccess", "fail", lambda: "passed, though marked as an expected failure")
observe(Result, "addSkip", "skip", lambda why: why)
observe(Result, "addFailure", "fail", exception)
observe(Result, "addError", "fail", exception)

# A subtest reports its failure here and nowhere else; one that passed says nothing.
add_subtest = Result.addSubTest


def observe_subtest(self, test, subtest, err):
    if err is not None:
        record(test, "fail", f"{subtest}: {exception(err)}")
    add_subtest(self, test, subtest, err)


Result.addSubTest = observe_subtest

from test.libregrtest import main

sys.argv[:2] = ["test"]
main()

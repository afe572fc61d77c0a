"""Progress: what it prints and what it promises, on a clock of ours."""

import io

import pytest

from megagp import progress as module
from megagp.progress import Progress, clock


class Clock:
    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    fake = Clock()
    monkeypatch.setattr(module, "time", fake)
    return fake


PLAN = [("subset", 4, 1.0), ("all", 3, 10.0), ("precompute", 1, 5.0)]
SECONDS = 4 * 1 + 3 * 10 + 1 * 5


def run(progress, time, check=lambda left: None, speed=1.0, parts=4):
    """Work through PLAN, whose costs are true in units of `speed` seconds."""
    left = speed * SECONDS
    progress.start(PLAN)
    for name, steps, cost in PLAN:
        progress.phase(name)
        check(left)
        for step in range(1, steps + 1):
            for part in range(1, parts + 1):
                time.now += speed * cost / parts
                left -= speed * cost / parts
                if part < parts:
                    progress.iteration(part, 0.1)
                    check(left)
            progress.step(step, 1.25)
            check(left)
    progress.finish()


@pytest.mark.parametrize("speed", [0.01, 1.0, 300.0])
def test_the_time_left_is_true_when_costs_are(time, speed):
    progress = Progress(0)
    seen = []

    def check(left):
        promised = progress.seconds_left()
        if promised is None:
            assert not seen  # only before anything is known
            return
        seen.append(promised)
        assert promised == pytest.approx(left, abs=1e-6 * speed)

    run(progress, time, check, speed)
    assert len(seen) > 20
    assert progress.seconds_left() is None


def test_a_phase_of_another_speed_is_noticed(time):
    """Half the plan done at 1 s per unit; then a unit takes 3 s."""
    progress = Progress(0)
    progress.start([("a", 10, 1.0), ("b", 10, 1.0)])
    progress.phase("a")
    for step in range(1, 11):
        time.now += 1
        progress.step(step, 0.0)
    progress.phase("b")
    assert progress.seconds_left() == pytest.approx(10)
    time.now += 3
    progress.step(1, 0.0)
    assert progress.seconds_left() == pytest.approx(27)


def test_overdue_is_not_negative(time):
    progress = Progress(0)
    progress.start([("a", 2, 1.0)])
    progress.phase("a")
    time.now += 1
    progress.step(1, 0.0)
    time.now += 50
    assert progress.seconds_left() == 0


def test_nothing_known_nothing_said():
    progress = Progress(0)
    assert progress.seconds_left() is None
    progress.start(PLAN)
    progress.phase("subset")
    assert progress.seconds_left() is None


def test_silence(time, capsys):
    stream = io.StringIO()
    run(Progress(0, stream), time)
    run(Progress(0), time)
    assert stream.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_lines_where_there_is_no_terminal(time, capsys):
    run(Progress(1), time)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "megagp: subset: 4.0 s, loss 1.2500 per point",
        "megagp: all: 30.0 s, loss 1.2500 per point",
        "megagp: precompute: 5.0 s, loss 1.2500 per point",
    ]


def test_a_terminal_is_kept_up_to_date_and_left_clean(time, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    progress = Progress(1, stream)
    # The line is drawn when told to, not eight times a second of a clock that is not ours.
    run(progress, time, lambda left: progress._live.refresh())
    assert progress._live is None
    shown = stream.getvalue()
    assert "megagp: subset | step 1/4 | time left: measuring" in shown
    assert "megagp: subset | step 1/4 | CG 1: residual 0.1 | time left: measuring" in shown
    assert "megagp: subset | step 2/4 | loss 1.2500 | CG 3: residual 0.1 | time left 37 s" in shown
    assert "megagp: all | step 2/3 | loss 1.2500 | CG 2: residual 0.1 | time left 20 s" in shown
    assert "megagp: precompute | step 1/1 | loss 1.2500 | time left 5 s" in shown
    assert "megagp: all: 30.0 s" in shown


def test_skipped_phases_and_a_second_run(time):
    """With nothing to train, a fit goes straight to the last phase; and a Progress serves again."""
    progress = Progress(0)
    for _ in range(2):
        progress.start(PLAN)
        progress.phase("precompute")
        assert progress.seconds_left() is None
        time.now += 2
        progress.step(1, 0.0)
        assert progress.seconds_left() == 0
        progress.finish()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (42.4, "42 s"),
        (59.4, "59 s"),
        (59.7, "1:00 min"),
        (60, "1:00 min"),
        (185, "3:05 min"),
        (3599, "59:59 min"),
        (3599.7, "1:00 h"),
        (7800, "2:10 h"),
        (360000, "100:00 h"),
    ],
)
def test_clock(seconds, text):
    assert clock(seconds) == text

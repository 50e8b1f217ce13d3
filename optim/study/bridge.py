# The Python side of a study (optim/study.h): Optuna behind lines of JSON. The library holds this text and sends it as the
# first line. A line is an array of strings; doubles travel as hexadecimal numbers, so that no bit is lost. A request gets
# one answer: ["ok", ...], or ["argument" | "io" | "state" | "unsupported", why].
import os
import sys

# Answers go to the pipe that was standard output, and what anything else prints to standard error. Nothing of MPI's is to
# be kept open here.
answers = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
os.dup2(2, 1)
os.closerange(answers.fileno() + 1, 4096)
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[threads] = "1"

import fcntl
import importlib
import json
import queue
import sqlite3
import threading
import time
import urllib.parse
import warnings

RETRIES = 3  # of a trial that is killed each time

requests = queue.Queue()
parent = os.getppid()


def answer(*words):
    answers.write(json.dumps(words, ensure_ascii=False) + "\n")
    answers.flush()


# This process ends with the rank that started it, also in the middle of a computation. The pipe tells; but a process that
# the rank has forked may hold the other end of it.
def listen():
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def watch():
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


threading.Thread(target=listen, daemon=True).start()
threading.Thread(target=watch, daemon=True).start()


class Refused(Exception):
    def __init__(self, code, why):
        super().__init__(why)
        self.code = code


try:
    import optuna
    from optuna.trial import TrialState
except ImportError as error:
    answer("unsupported", f"{sys.executable} has no Optuna ({error})")
    os._exit(0)
if int(optuna.__version__.split(".")[0]) < 3:
    answer("unsupported", f"{sys.executable} has Optuna {optuna.__version__}, which is older than 3.0")
    os._exit(0)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", category=FutureWarning)
optuna.logging.set_verbosity(optuna.logging.ERROR)


class Lock:
    """A byte of the lock file: the kernel releases it when this process ends, however it does."""

    def __init__(self, file, byte):
        self.file, self.byte = file, byte

    def take(self, how=fcntl.LOCK_EX):
        fcntl.lockf(self.file, how, 1, self.byte)

    def take_within(self, seconds):
        end = time.monotonic() + seconds
        while True:
            try:
                return self.take(fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def give(self):
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, self.byte)


class FileLock:
    """A whole file that is locked. Optuna's own lock of a journal outlives a process that was killed."""

    def __init__(self, path):
        self.path, self.file = path, None

    def acquire(self, how=fcntl.LOCK_EX):
        self.file = open(self.path, "a")
        fcntl.flock(self.file, how)
        return True

    def release(self):
        self.file.close()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *error):
        self.release()


def append_lock(path):
    return FileLock(path + ".append-lock")


def open_journal(path):
    try:
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        from optuna.storages import JournalFileStorage as JournalFileBackend

    class Journal(JournalFileBackend):
        """Optuna reads without the lock, and may so read half of a line that another process writes."""

        def read_logs(self, *arguments):
            lock = append_lock(path)
            lock.acquire(fcntl.LOCK_SH)
            try:
                return list(super().read_logs(*arguments))
            finally:
                lock.release()

    return optuna.storages.JournalStorage(Journal(path, lock_obj=append_lock(path)))


def open_sqlite(path):
    # The path is no part of the URL, which would take some of its characters for options. Jobs that make the tables of one
    # file at once would fail.
    def connect():
        return sqlite3.connect(os.path.abspath(path), timeout=60, check_same_thread=False)

    with FileLock(path + ".tables-lock"):
        return optuna.storages.RDBStorage("sqlite:///study.db", engine_kwargs={"creator": connect})


def is_sqlite(path):
    return os.path.splitext(path)[1] in (".db", ".sqlite", ".sqlite3")


def open_storage(path):
    return open_sqlite(path) if is_sqlite(path) else open_journal(path)


def begins_journal(line):
    """Whether this may be the first line of a journal; one without its end is torn."""
    start = b'{"op_code": '
    if not line.endswith(b"\n"):
        return line.startswith(start) or start.startswith(line)
    try:
        first = json.loads(line)
    except ValueError:
        return False
    return isinstance(first, dict) and {"op_code", "worker_id"} <= first.keys()


def check_file(path):
    """A file that is there and no storage belongs to somebody else, and is left as it is."""
    if not os.path.exists(path):
        return
    if not os.path.isfile(path):
        raise Refused("io", f"storage {path} is no file; should name a new one, or one that a study has made")
    with open(path, "rb") as file:
        line = file.readline(1 << 20)
    if is_sqlite(path) and line and not line.startswith(b"SQLite format 3\0"):
        raise Refused("io", f"storage {path} is no SQLite database; should name a new file, or one that a study has made")
    if not is_sqlite(path) and not begins_journal(line):
        raise Refused("io", f"storage {path} is no journal of Optuna; should name a new file, or one that a study has made")


def cut_torn_line(path):
    """A machine that lost its power may leave half of a journal's last line, which the next one would spoil."""
    if is_sqlite(path) or not os.path.exists(path):
        return
    with append_lock(path), open(path, "rb+") as file:
        text = file.read()
        if text and not text.endswith(b"\n"):
            file.truncate(text.rfind(b"\n") + 1)


def check_packages(sampler):
    needed = {"cmaes": "cmaes", "qmc": "scipy"}.get(sampler)
    try:
        if needed:
            importlib.import_module(needed)
    except ImportError:
        raise Refused(
            "unsupported",
            f"{sys.executable} has no package {needed}, which the sampler {sampler} needs"
            f" (Debian: apt-get install python3-{needed}; else: pip install {needed})",
        )


def make_sampler(kind, seed, startup, groups):
    seed = None if seed < 0 else seed % 2**32
    trials = {"n_startup_trials": startup} if startup > 0 else {}
    if kind == "tpe":
        return optuna.samplers.TPESampler(seed=seed, constant_liar=groups > 1, **trials)
    if kind == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if kind == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False, **trials)
    return optuna.samplers.QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False)


def make_pruner(kind, startup, warmup):
    if kind == "median":
        trials = {"n_startup_trials": startup} if startup > 0 else {}
        return optuna.pruners.MedianPruner(n_warmup_steps=warmup, **trials)
    if kind == "halving":
        return optuna.pruners.SuccessiveHalvingPruner()
    if kind == "hyperband":
        return optuna.pruners.HyperbandPruner()
    return optuna.pruners.NopPruner()


class Bridge:
    """A study and its trial that runs. Every public method is a request."""

    def open(self, name, path, maximize, sampler, seed, startup, pruner, warmup, trials, group, groups, wait):
        self.most, self.trial, self.choosing, self.path = int(trials), None, None, path
        check_packages(sampler)
        wanted = "maximize" if int(maximize) else "minimize"
        storage = None
        if path:
            check_file(path)
            self.lock(name, path, int(group), float.fromhex(wait))
            storage = open_storage(path)
        self.study = optuna.create_study(
            storage=storage, study_name=name, direction=wanted, load_if_exists=True,
            pruner=make_pruner(pruner, int(startup), int(warmup)),
        )
        if self.study.direction.name.lower() != wanted:
            raise Refused("argument", f"study {name} of {path} is there to {self.study.direction.name.lower()}, not to {wanted}")
        if int(group) == 0:
            self.repeat_killed()
        if path and int(group) == 0:
            self.members.give()
        seed = int(seed) + 65537 * int(group) + len(self.trials()) if int(seed) > 0 else -1
        self.study.sampler = make_sampler(sampler, seed, int(startup), int(groups))
        return [optuna.__version__]

    def lock(self, name, path, group, wait):
        """One job has a study: group 0 keeps the first byte, and every other group a share of the second, so that the next
        job waits until the last of them is gone. The third is held while a trial is counted and made."""
        self.file = open(f"{path}.{urllib.parse.quote(name, safe='')}.lock", "a+")
        owner, self.members, self.choosing = (Lock(self.file, byte) for byte in range(3))
        if group > 0:
            return self.members.take(fcntl.LOCK_SH)
        try:
            owner.take_within(wait)
            self.members.take_within(wait)
        except OSError:
            raise Refused("state", f"study {name} of {path} is open in another job")
        cut_torn_line(path)

    def trials(self):
        return self.study.get_trials(deepcopy=False)

    def retried(self):
        return {n for t in self.trials() for n in t.system_attrs.get("retry_history", [])}

    def repeat_killed(self):
        """No other process has the study now, so a trial that still runs was killed. Its retry, or the reason why there is
        none, is written first: if this process is killed too, the trial has it already."""
        retried = self.retried()
        retry = optuna.storages.RetryFailedTrialCallback()
        for trial in self.study.get_trials():
            if trial.state == TrialState.RUNNING:
                if len(retry.retry_history(trial)) >= RETRIES:
                    reason = f"the job was killed {RETRIES + 1} times while it ran"
                    self.study._storage.set_trial_user_attr(trial._trial_id, "reason", reason)
                elif trial.number not in retried:
                    retry(self.study, trial)
                self.study.tell(trial.number, state=TrialState.FAIL)

    def ask(self):
        if self.choosing:
            self.choosing.take()
        try:
            retried = self.retried()
            waiting = any(t.state == TrialState.WAITING for t in self.trials())
            made = sum(t.state != TrialState.WAITING and t.number not in retried for t in self.trials())
            if self.most and made >= self.most and not waiting:
                return ["-1"]
            self.trial, self.asked = self.study.ask(), {}
        finally:
            if self.choosing:
                self.choosing.give()
        return [str(self.trial.number)]

    def running(self):
        return [str(sum(t.state == TrialState.RUNNING for t in self.trials()))]

    def once(self, name, what):
        """Optuna gives the value of the first range to whoever asks for another one."""
        if self.asked.setdefault(name, what) != what:
            raise Refused("argument", f"parameter {name} was asked for as {self.asked[name]}, and now as {what}")

    def float(self, name, low, high, log, step):
        step = float.fromhex(step)
        low, high = float.fromhex(low), float.fromhex(high)
        self.once(name, f"a float of [{low!r}, {high!r}]" + ", logarithmic" * int(log) + f", step {step!r}" * bool(step))
        return [self.trial.suggest_float(name, low, high, log=log == "1", step=step if step else None).hex()]

    def int(self, name, low, high, log, step):
        low, high, step = (int(float.fromhex(word)) for word in (low, high, step))
        self.once(name, f"an integer of [{low}, {high}]" + ", logarithmic" * (log == "1") + f", step {step}" * bool(step))
        return [str(self.trial.suggest_int(name, low, high, log=log == "1", step=step or 1))]

    def categorical(self, name, *choices):
        self.once(name, "one of " + ", ".join(choices))
        return [str(choices.index(self.trial.suggest_categorical(name, choices)))]

    def report(self, step, value):
        self.trial.report(float.fromhex(value), int(step))
        return []

    def prune(self):
        return [str(int(self.trial.should_prune()))]

    def tell(self, state, reason, value):
        if state == "complete":
            self.study.tell(self.trial, float.fromhex(value))
        elif state == "pruned":
            self.study.tell(self.trial, state=TrialState.PRUNED)
        else:
            self.trial.set_user_attr("reason", reason)
            self.study.tell(self.trial, state=TrialState.FAIL)
        self.trial = None
        return []

    def table(self):
        retried, words = self.retried(), []
        for t in self.trials():
            seconds = t.duration.total_seconds() if t.duration else float("nan")
            value = t.value if t.value is not None else float("nan")
            history = t.system_attrs.get("retry_history", [])
            state = "RETRIED" if t.number in retried else t.state.name
            words += [str(t.number), state, value.hex(), seconds.hex(), str(history[-1] if history else -1)]
            words += [t.user_attrs.get("reason", ""), str(len(t.params))]
            for name, value in sorted(t.params.items()):
                kind = t.distributions[name]
                if isinstance(kind, optuna.distributions.FloatDistribution):
                    words += [name, "float", float(value).hex()]
                elif isinstance(kind, optuna.distributions.IntDistribution):
                    words += [name, "int", str(int(value))]
                else:
                    words += [name, "categorical", str(value)]
        return words


def code_of(error):
    if isinstance(error, Refused):
        return error.code
    if isinstance(error, ImportError):
        return "unsupported"
    # These two are of what was read, and are ValueErrors.
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return "io"
    return "argument" if isinstance(error, (ValueError, TypeError)) else "io"


def text_of(error, request, words):
    text = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, Refused):
        return text
    text = f"{type(error).__name__}: {text}"
    if request in ("float", "int", "categorical"):
        text = f"parameter {words[0]}: {text}"
    path = getattr(bridge, "path", None)
    return f"storage {path}: {text}" if path and code_of(error) == "io" else text


bridge = Bridge()
while True:
    line, request, words = requests.get(), None, []
    try:
        request, *words = json.loads(line)
        answer("ok", *getattr(bridge, request)(*words))
    except Exception as error:
        answer(code_of(error), text_of(error, request, words))

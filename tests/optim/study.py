# What tests/optim/study.c prints for "sequence", from Optuna alone: study.py SAMPLER PRUNER. And what a study that was
# killed has left: study.py STORAGE TRIALS.
import sys
import warnings

import optuna

warnings.filterwarnings("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)
names = ["data", 'channel "\\\n\u00e9', "both"]


def sequence(sampler, pruner):
    kinds = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
        "qmc": lambda seed: optuna.samplers.QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False),
    }
    pruners = {
        "median": optuna.pruners.MedianPruner,
        "none": optuna.pruners.NopPruner,
        "halving": optuna.pruners.SuccessiveHalvingPruner,
        "hyperband": optuna.pruners.HyperbandPruner,
    }
    if sampler == "cmaes":
        kind = optuna.samplers.CmaEsSampler(seed=7, warn_independent_sampling=False)
    else:
        kind = kinds[sampler](seed=7)
    # Hyperband takes a trial's bracket from the name of the study.
    study = optuna.create_study(study_name="sequence", sampler=kind, pruner=pruners[pruner]())
    for _ in range(25):
        trial = study.ask()
        x = trial.suggest_float("x", -1, 1)
        lr = trial.suggest_float("lr", 1e-5, 1e-1, log=True)
        n = trial.suggest_int("n", 1, 1000, log=True)
        split = 0 if sampler == "cmaes" else names.index(trial.suggest_categorical("split", names))
        value = abs(x) + lr + n + split
        pruned = False
        for step in range(3):
            trial.report(value + step, step)
            pruned = trial.should_prune()
            if pruned:
                break
        print(x.hex(), lr.hex(), n, split, int(pruned))
        study.tell(trial, None if pruned else value, state=optuna.trial.TrialState.PRUNED if pruned else None)


def open_storage(path):
    if path.endswith(".db"):
        return optuna.storages.RDBStorage("sqlite:///" + path)
    try:
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        from optuna.storages import JournalFileStorage as JournalFileBackend
    return optuna.storages.JournalStorage(JournalFileBackend(path))


def killed(path, trials):
    study = optuna.load_study(study_name="killed", storage=open_storage(path))
    history = optuna.storages.RetryFailedTrialCallback.retry_history
    table = study.get_trials()
    made = [t for t in table if t.state == optuna.trial.TrialState.COMPLETE]
    repeated = [t for t in table if t.state == optuna.trial.TrialState.FAIL]
    assert len(made) == trials, f"{len(made)} trials are complete"
    assert len(table) == len(made) + len(repeated), [t.state.name for t in table]
    assert repeated, "no trial was running at a kill"
    for t in repeated:
        retries = [u for u in table if history(u)[-1:] == [t.number]]
        assert len(retries) == 1, f"trial {t.number} was made again {len(retries)} times"
        assert t.params.items() <= retries[0].params.items(), f"{retries[0].params}, not {t.params}"
        assert retries[0].intermediate_values.keys() <= {0}
    # Each setting is there once: none was suggested to two groups, or again after a kill.
    settings = [tuple(sorted(t.params.items())) for t in made]
    assert len(set(settings)) == trials, "a setting is there twice"
    # Both groups work at the same time.
    beside = [any(a is not b and a.datetime_start < b.datetime_complete and b.datetime_start < a.datetime_complete for b in made) for a in made]
    assert sum(beside) >= trials // 2, f"{sum(beside)} of {trials} trials ran beside another one"
    for t in made:
        assert t.value == t.params["x"] + names.index(t.params["split"]), (t.value, t.params)


if sys.argv[2].isdigit():
    killed(sys.argv[1], int(sys.argv[2]))
else:
    sequence(*sys.argv[1:])

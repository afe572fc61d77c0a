"""What ranks run in the tests; also run by one process, whose results are the expected ones."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import torch

from megagp import GPRegressor, KernelOperator, SGPRegressor, distributed
from megagp.approximate import CollapsedLoss, InducingParameters, factor
from megagp.covariance import Covariance
from megagp.engines import native
from megagp.engines.keeping import KEEP_FROM
from megagp.kernels import Hyperparameter, Matern32
from megagp.likelihood import stochastic
from megagp.preconditioners import PivotedCholesky, greedy_pivots, random_pivots
from megagp.solvers import ConvergenceWarning, solve
from megagp.training import Solving, Started, objective, representation


def data(n: int, d: int = 3) -> tuple[Any, Any]:
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=n)


def kernel(d: int = 3) -> Matern32:
    return Matern32(np.linspace(0.8, 1.6, d), 1.3)


def everything(size: int) -> dict[str, Any]:
    """All programs, so that a number of ranks need be started only once."""
    uneven = tuple(float(1 + 3 * rank) for rank in range(size))
    return {
        "products": products(),
        "solves": solves(None),
        "uneven": solves(uneven),
        "fits": fits(),
        "varying": varying(),
        "effects": effects(),
        "kept": kept(),
        "represented": represented(),
        "unseeded": unseeded_fit(),
        "different": different_data(),
        "broadcasts": broadcasts(),
        "gathers": gathers(),
        "apart": alone_within_ranks(),
        "sparse": sparse(),
        "no factor": no_factor(),
    }


def products() -> dict[str, Any]:
    """Products and gradients, of all kinds and odd sizes, and what they cost in bytes."""
    ranks = distributed.current()
    found: dict[str, Any] = {}
    for n, engine, dtype in [
        (2049, "native", "float32"),
        (700, "tiles", "float64"),
        (1, "native", "float64"),
        (2, "tiles", "float32"),
        (4, "native", "float32"),
    ]:
        X, y = data(n)
        V = torch.from_numpy(np.stack([y, np.cos(y)], axis=1))
        operator = KernelOperator(X, kernel(), engine=engine, dtype=dtype, ranks=ranks)
        before = traffic(ranks)
        found[f"product {n}"] = operator.matmul(V).numpy()
        found[f"bytes {n}"] = traffic(ranks) - before
        g = operator.gradient(V, V.flip(1), inputs=True)
        found |= {f"gradient {n} {name}": g[name].numpy() for name in g}
        Z, _ = data(5)
        cross = KernelOperator(X, kernel(), Z, engine=engine, dtype=dtype, ranks=ranks)
        found[f"cross {n}"] = cross.matmul(Z).numpy()
    X, y = data(300)
    k = kernel().requires_grad_()
    V = torch.from_numpy(y).requires_grad_()
    KernelOperator(X, k, dtype="float64", ranks=ranks).matmul(V).square().sum().backward()
    found["autograd"] = np.concatenate([T.grad.reshape(-1) for T in (V, *k.parameters())])
    return found


def gathers() -> dict[str, Any]:
    """Rows that ranks own, of all sizes: few and many bytes, fewer rows than ranks, none."""
    ranks = distributed.current()
    found: dict[str, Any] = {}
    for shape in [(1000,), (1000, 3), (2, 7), (0, 4), (3, 300_000), (1001, 1000), (900_000,)]:
        whole = torch.arange(int(np.prod(shape)), dtype=torch.float64).reshape(shape)
        part = whole[ranks.rows(len(whole))]
        found[f"gather {shape}"] = bool(torch.equal(ranks.gather(part, len(whole)), whole))
    return found


def traffic(ranks: distributed.Ranks) -> int:
    return sum(getattr(ranks, "traffic", {}).values())


def solves(weights: tuple[float, ...] | None) -> dict[str, Any]:
    """Pivots, preconditioner, likelihood and solve; with shares of unequal size, if asked."""
    ranks = distributed.current()
    if weights is not None and ranks.size > 1:
        ranks.weights = weights[: ranks.size]
    found: dict[str, Any] = {}
    for n, rank in [(900, 40), (3, 2)]:
        X, y = data(n)
        Y = torch.from_numpy(y)[:, None]
        operator = KernelOperator(X, kernel(), dtype="float64", ranks=ranks)
        covariance = Covariance(operator, torch.full((n,), 0.02, dtype=torch.float64))
        found[f"greedy {n}"] = greedy_pivots(operator, rank).numpy()
        pivots = random_pivots(operator, rank, np.random.default_rng(0))
        found[f"random {n}"] = pivots.numpy()
        P = PivotedCholesky(covariance, pivots)
        found[f"rows {n}"] = len(P.L)
        found[f"P inverse {n}"] = P.solve(Y).numpy()
        found[f"log P {n}"] = P.logdet()
        found[f"samples {n}"] = P.sample(2, torch.Generator().manual_seed(1)).numpy()
        before = traffic(ranks)
        P.solve(Y)
        found[f"bytes {n}"] = traffic(ranks) - before
        H = torch.ones(n, 1, dtype=torch.float64)
        e = stochastic(
            covariance, Y, H, P, torch.Generator().manual_seed(0), rtol=1e-6, probe_rtol=1e-6
        )
        found[f"likelihood {n}"] = e.value
        found |= {f"d {name} {n}": g.numpy() for name, g in e.gradient.items()}
        found[f"iterations {n}"] = e.solve.iterations.numpy()
        found[f"solve {n}"] = solve(covariance, Y, P.solve, rtol=1e-8).x.numpy()
    return found


def fits() -> dict[str, Any]:
    """From data to predictions, for more and for fewer points than ranks."""
    found: dict[str, Any] = {}
    for n, m in [(1600, 7), (40, 3), (3, 1)]:
        X, y = data(n)
        model = small_regressor(None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
        mean, std = model.predict(X[:m] + 0.1, return_std=True)
        found |= {f"mean {n}": mean, f"std {n}": std}
        found[f"likelihood {n}"] = model.log_marginal_likelihood_
        found[f"noise {n}"] = model.noise_variance_
        found[f"lengthscale {n}"] = model.kernel_.lengthscale.detach().numpy()
        found[f"iterations {n}"] = [p["iterations"] for p in model.diagnostics_["phases"]]
    return found


def kept() -> dict[str, Any]:
    """A fit whose first rank keeps entries of K, and whose other ranks have too little memory."""
    X, y = data(1600, KEEP_FROM)
    budget, first = native.keeping_budget, distributed.current().first
    native.keeping_budget = lambda features: 10**9 if first else 0  # type: ignore
    try:
        model = GPRegressor(ard=False, training="adam", steps=2, random_state=0).fit(X, y)
    finally:
        native.keeping_budget = budget  # type: ignore
    mean, std = model.predict(X[:7], return_std=True)
    ranks_of_p = [p["rank"] for p in model.diagnostics_["phases"]]
    return {"mean": mean, "std": std, "rank of P": ranks_of_p}


def varying() -> dict[str, Any]:
    """A fit whose noise varies, as rank 0 finds it to."""
    X, y = data(1600)
    y = y + np.where(X[:, 0] > 0, 0.5, 0.0) * np.random.default_rng(1).normal(size=1600)
    model = small_regressor(None).set_params(training="none")
    model.set_params(noise_model="varying", calibration="local").fit(X, y)
    mean, std = model.predict(X[:7], return_std=True)
    varies, calibrated = model.noise_model_ == "varying", model.calibration_ == "local"
    return {"mean": mean, "std": std, "varies": float(varies), "calibrated": float(calibrated)}


def effects() -> dict[str, Any]:
    """A fit whose places have noise of their own, as rank 0 finds it, and effects."""
    X, y = (np.concatenate([A, A[:400], A[:400]]) for A in data(1600))
    y[-400:] += np.where(np.arange(400) % 4 == 0, 0.5, 0.0) * np.random.default_rng(1).normal(
        size=400
    )
    model = small_regressor(None).set_params(training="adam", steps=2, noise_model="varying")
    model.fit(X, y)
    mean, std = model.predict(X[397:404], return_std=True)
    return {"mean": mean, "std": std, "place variance": model.place_variance_}


def represented() -> dict[str, Any]:
    """Which inputs are taken where few points tell, where they don't, and where none can be had."""
    X, y = data(1800)
    blurred = X + 0.01 * np.random.default_rng(1).normal(size=X.shape)
    found: dict[str, Any] = {}
    seen: list[Any] = []
    for name, pair in {"clear": (X**3, X), "close": (blurred, X)}.items():
        ways = [torch.from_numpy(each) for each in pair]
        found[name], started = choose(ways, torch.from_numpy(y)[:, None], seen)
        found[f"{name} start"] = np.r_[started.loss, started.evaluations, started.theta]
        for i, c in enumerate(seen[-2:]):
            c.seconds = 0.0
            found[f"{name} {i}"] = c.pack().numpy()
    try:
        choose([torch.from_numpy(X), torch.from_numpy(X)], torch.full((1800, 1), np.nan), seen)
    except ValueError as error:
        found["error"] = float("expected a finite likelihood" in str(error))
    return found


def choose(ways: list[torch.Tensor], Y: torch.Tensor, seen: list[Any]) -> tuple[int, Started]:
    """The representation chosen, and its start; the candidates are added to `seen`."""
    made = representation._Candidate

    def candidate(*arguments: Any) -> Any:
        seen.append(made(*arguments))
        return seen[-1]

    representation._Candidate, candidate.learn = candidate, made.learn  # type: ignore
    try:
        return representation.choose_representation(
            ways,
            Y,
            kernel(),
            Hyperparameter("noise_variance", 0.1),
            torch.ones(len(Y), dtype=torch.float64),
            mean="constant",
            solving=Solving(ranks=distributed.current()),
            noise_floor=1e-4,
            seed=0,
            subset=10_000,
        )
    finally:
        representation._Candidate = made  # type: ignore


def sparse() -> dict[str, Any]:
    """SGPR: the bound and its gradient with their bytes, and fits with predictions."""
    ranks = distributed.current()
    found: dict[str, Any] = {}
    for n in (900, 3):
        X, y = data(n)
        loss = collapsed(X, y, ranks)
        before = traffic(ranks)
        value, gradient = loss._evaluate(loss.best[1])
        found |= {f"loss {n}": value, f"gradient {n}": gradient}
        found[f"bytes {n}"] = traffic(ranks) - before
        for training in ("lbfgs", "adam", "none"):
            model = SGPRegressor(inducing_points=30, training=training, steps=5, random_state=0)
            mean, std = model.fit(X, y).predict(X[:7] + 0.1, return_std=True)
            found |= {f"{training} mean {n}": mean, f"{training} std {n}": std}
            found[f"{training} bound {n}"] = model.log_marginal_likelihood_
            found[f"{training} Z {n}"] = model.inducing_points_
            found[f"{training} evaluations {n}"] = model.n_iter_
    return found


def collapsed(X: Any, y: Any, ranks: distributed.Ranks) -> CollapsedLoss:
    noise = Hyperparameter("noise_variance", 0.05)
    points = torch.from_numpy(X)
    parameters = InducingParameters(kernel(), noise, 1e-4, points[:20] + 0.1, True)
    Y = torch.from_numpy(y)[:, None]
    return CollapsedLoss(points, Y, torch.ones_like(Y), parameters, 1e-6, ranks)


def no_factor() -> dict[str, Any]:
    """Rank 0 finds no factor at the second evaluation; the others would always find one."""
    ranks = distributed.current()
    loss = collapsed(*data(200), ranks)
    attempt, calls = factor._factor, 0

    def sometimes(K: torch.Tensor, share: float) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError("no factor")
        return attempt(K, share)

    factor._factor = sometimes
    losses = [loss._evaluate(loss.best[1] + 0.01 * step)[0] for step in range(3)]

    def never(K: torch.Tensor, share: float) -> Any:
        raise ValueError("no factor")

    factor._factor = never
    messages = []
    for training in ("lbfgs", "adam", "none"):
        try:
            SGPRegressor(inducing_points=5, training=training, steps=3).fit(*data(50))
        except ValueError as error:
            messages.append(str(error))
    factor._factor = attempt
    return {"losses": losses, "calls": calls, "messages": messages}


def small_regressor(checkpoint: Any) -> GPRegressor:
    settings: dict[str, Any] = {"training": "adam", "steps": 2, "rank": 80, "probes": 4}
    return GPRegressor(neighbours=8, random_state=0, checkpoint=checkpoint, **settings)


def unseeded_fit() -> float:
    X, y = data(1600)
    model = GPRegressor(training="none", rank=20, probes=2, random_state=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y).log_marginal_likelihood_


def different_data() -> str:
    X, y = data(20)
    try:
        GPRegressor().fit(X, y + distributed.current().rank)
    except ValueError as error:
        return str(error)
    return "no error"


def broadcasts() -> dict[str, Any]:
    ranks = distributed.current()
    X, y = data(6) if ranks.first else (None, None)
    X, y = distributed.broadcast(ranks, X, y)
    messages = []
    try:
        ranks.from_first(_fails)
    except ValueError as error:
        messages.append(str(error))
    return {"X": X, "y": y, "messages": messages}


def _fails() -> Any:
    raise ValueError("no such table")


def alone_within_ranks() -> float:
    """Each rank for itself: other data on each, and no hang."""
    rank = distributed.current().rank
    X, y = data(20 + rank)
    model = GPRegressor(distributed=False, random_state=0).fit(X, y)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/own.mgp")
        assert os.path.exists(f"{folder}/own.mgp"), "every rank writes its own model"
    return float(model.predict(X[:1])[0])


def interrupted(how: str, timeout: float) -> tuple[str, float]:
    """Rank 1 ends or falls silent between two products; what the others say, and after how long."""
    ranks = distributed.join(timeout)
    X, y = data(40)
    operator = KernelOperator(X, kernel(), ranks=ranks)
    operator.matmul(y)
    if ranks.rank == 1:
        if how == "dies":
            os._exit(9)
        time.sleep(4 * timeout)
        return "silent", 0.0
    start = time.perf_counter()
    try:
        operator.matmul(y)
    except distributed.RankError as error:
        return str(error), time.perf_counter() - start
    return "no error", time.perf_counter() - start


def threads_and_speeds() -> dict[str, Any]:
    """Ranks of different kinds: the second one has two threads, and claims half the speed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    distributed.join()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rank = distributed.current().rank
    torch.set_num_threads(1 + rank)
    import megagp.distributed.group as group

    group.speed = lambda: 2.0 - rank
    return {"threads": threads, "weights": distributed.current().weights}


class StoppedError(Exception):
    """A fit that was made to end early."""


def fit_until(folder: str, limit: int | None) -> dict[str, Any]:
    """The small fit with a checkpoint; all ranks stop before the evaluation after `limit`."""
    ranks = distributed.join(60.0)
    evaluate, made = objective.stochastic, 0

    def limited(*args: Any, **options: Any) -> Any:
        nonlocal made
        if made == limit:
            raise StoppedError
        made += 1
        return evaluate(*args, **options)

    objective.stochastic = limited
    X, y = data(1600)
    try:
        model = small_regressor(folder).fit(X, y)
    except StoppedError:
        return {"made": made, "size": ranks.size}
    return {"made": made, "size": ranks.size, "mean": model.predict(X[:20])}

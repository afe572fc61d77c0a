"""Forecasts: that they add up, grow as they must, and say what a fit would do."""

import itertools
from dataclasses import replace

import pytest

from megagp.planning import GPUS, Rates, calibrate, forecast, roofline, workload
from megagp.planning.forecast import size
from megagp.planning.roofline import pairs_per_second
from megagp.training import Recipe, Solving

NOTHING = Rates(
    product=0,
    product_column=0,
    precise=0,
    gradient=0,
    draw=0,
    setup=0,
    gather=0,
    search=0,
    apply=0,
    dense=0,
    link=float("inf"),
    source="test",
)


def test_legs_are_the_phases_of_the_recipe_and_the_last_solve():
    for method, n in itertools.product(("pretrain", "paper", "adam", "none"), (1000, 5000, 40_000)):
        recipe = Recipe(method=method)
        legs = workload(n, 3, recipe=recipe)
        phases = recipe.phases(n)
        assert [leg.name for leg in legs] == [*(p.name for p in phases), "precompute"]
        assert [leg.points for leg in legs] == [*(p.size for p in phases), n]
        assert all(leg.dense == (leg.points <= Solving().dense_below) for leg in legs)


def test_products_and_kernel_evaluations():
    recipe, solving = Recipe(method="adam", steps=4), Solving(rank=100, probes=5)
    training, last = workload(3000, 2, recipe=recipe, solving=solving, outputs=2, basis=3)
    assert training.columns == 10
    assert last.columns == 5
    assert training.evaluations == 5
    assert training.products == pytest.approx(5 * (training.iterations + 1))
    pairs = 3000 * 3001 / 2
    passes = training.products + 5
    assert training.kernel_evaluations == pytest.approx(passes * pairs + 5 * 3000 * 100)


def test_entries_that_are_kept():
    solving = Solving(rank=100)
    plain = workload(30_000, 384, solving=solving)
    # Half of K in float32 for the smaller subset, not for everything.
    kept = workload(30_000, 384, solving=solving, cache_budget=4 * 20_000**2 // 2)
    assert [bool(leg.kept) for leg in kept if not leg.dense] == [True, False, False]
    part = next(leg for leg in kept if leg.kept and not leg.dense)
    assert part.evaluated == part.evaluations < part.products
    # Products read, all but one of an evaluation; columns cost what they did.
    for rate, same in (("product", False), ("product_column", True)):
        rates = replace(NOTHING, **{rate: 1e-9})
        one, other = (forecast(30_000, 384, legs, rates).seconds for legs in (kept, plain))
        assert (one == other) if same else (one < other)
    assert workload(30_000, 384, cache_budget=10**12)[-2].rank < workload(30_000, 384)[-2].rank
    whole = workload(30_000, 384, solving=solving, cache_budget=10**12)
    more, less = (forecast(30_000, 384, legs, NOTHING).memory for legs in (whole, plain))
    assert more - less == 4 * 30_000**2 / 2
    double = replace(solving, dtype="float64")
    twice = workload(30_000, 384, solving=double, cache_budget=10**12)
    assert twice[-2].kept == 2 * whole[-2].kept


def test_a_larger_rank_saves_iterations():
    def iterations(rank):
        return workload(20_000, 2, solving=Solving(rank=rank))[-2].iterations

    assert iterations(50) > iterations(400) > iterations(2000) >= 3


@pytest.mark.parametrize(
    "part", ["product", "product_column", "gradient", "setup", "gather", "apply"]
)
def test_every_rate_counts_once(part):
    legs = workload(30_000, 4)
    rates = replace(NOTHING, **{part: 1e-9})
    one = forecast(30_000, 4, legs, rates).seconds
    assert one > 0
    assert forecast(30_000, 4, legs, replace(rates, **{part: 2e-9})).seconds == pytest.approx(
        2 * one
    )
    assert forecast(30_000, 4, legs, rates, devices=4).seconds == pytest.approx(one / 4)


def test_every_device_searches_for_neighbours():
    rates = replace(NOTHING, search=1e-9)
    legs = workload(30_000, 4)
    one = forecast(30_000, 4, legs, rates).seconds
    searched = sum(1e-9 * leg.points**2 for leg in legs if leg.gradients)
    assert one == pytest.approx(searched)
    assert forecast(30_000, 4, legs, rates, devices=4).seconds == pytest.approx(one)
    alone = workload(30_000, 4, solving=Solving(neighbours=0))
    assert forecast(30_000, 4, alone, rates).seconds == 0


def test_time_of_a_product():
    solving = Solving(rank=100, probes=0)
    legs = workload(3000, 2, recipe=Recipe(method="none"), solving=solving)
    rates = replace(NOTHING, product=1.0, product_column=0.5)
    # y and one column of the mean's basis: a pass over the pairs, and half of one per column.
    passes = legs[0].iterations + 1
    expected = passes * 3000 * 3001 / 2 * (1 + 2 * 0.5)
    assert forecast(3000, 2, legs, rates).seconds == pytest.approx(expected)


def test_communication_is_linear_in_n_and_free_alone():
    legs = workload(30_000, 4, recipe=Recipe(method="none"), solving=Solving(rank=100))
    assert forecast(30_000, 4, legs, NOTHING).communicated == 0
    two = forecast(30_000, 4, legs, NOTHING, 2)
    # One sum of n x 2 doubles each product, and less than twice that for the preconditioner.
    products = legs[0].products + legs[0].precise
    assert products * 30_000 * 2 * 8 <= two.communicated <= 2 * products * 30_100 * 2 * 8 + 1e6
    slow = forecast(30_000, 4, legs, replace(NOTHING, link=1e6), 2)
    assert slow.seconds == pytest.approx(two.communicated / 1e6)


def test_memory_falls_with_devices_and_is_linear_in_n():
    def memory(n, devices, **settings):
        legs = workload(n, 9, solving=Solving(rank=500, **settings))
        return forecast(n, 9, legs, NOTHING, devices).memory

    assert memory(200_000, 8, neighbours=0) < memory(200_000, 1, neighbours=0)
    # With neighbours every device holds all of the factor while it makes its rows.
    assert memory(200_000, 8) > memory(200_000, 1) - 200_000 * 500
    assert memory(200_000, 1) == pytest.approx(2 * memory(100_000, 1), rel=0.01)
    # X, nine vectors of six columns, and a factor of rank 500.
    assert memory(100_000, 1) > 100_000 * (9 * 8 + 9 * 6 * 8 + 500 * 4)


def test_partitions():
    found = forecast(257, 1, workload(257, 1), NOTHING)
    assert found.partitions == 3


def test_lines_say_everything():
    found = forecast(1_311_539, 9, workload(1_311_539, 9), roofline(GPUS["a100"], 9), 8)
    text = "\n".join(found.lines())
    for word in ("1,311,539 x 9 on 8 devices", "memory per device", "partitions: 13,130,250"):
        assert word in text
    for word in ("kernel evaluations: ", "communication per device", "never run on one"):
        assert word in text


def test_devices_must_be_some():
    with pytest.raises(ValueError, match="devices: expected at least 1, got 0"):
        forecast(10, 1, workload(10, 1), NOTHING, 0)


def test_sizes():
    assert [size(x) for x in (0, 999, 1500, 2e9, 3e15)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2 GB",
        "3e+03 TB",
    ]


def test_the_busiest_unit_sets_the_pace():
    gpu = GPUS["a100"]
    clocks = gpu.multiprocessors * gpu.clock
    assert pairs_per_second(gpu, {"FFMA": 64.0}) == pytest.approx(clocks)
    assert pairs_per_second(gpu, {"FFMA": 64.0, "MUFU": 32.0}) == pytest.approx(clocks / 2)
    assert pairs_per_second(gpu, {"IADD3": 256.0}) == pytest.approx(clocks / 2)


@pytest.mark.parametrize("name", GPUS)
def test_rates_of_gpus_grow_with_the_work(name):
    few, many = (roofline(GPUS[name], d) for d in (3, 30))
    assert 0 < few.product < many.product
    assert few.product < few.gradient
    assert few.product_column > 0


def test_calibration_measures_every_part():
    rates = calibrate(2, columns=4)
    for name, value in vars(rates).items():
        if name == "product_column":
            assert value >= 0  # a difference, which noise can make nothing of
        elif name != "source":
            assert value > 0, name

"""The table of prices."""

from __future__ import annotations

import datetime

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.facts.accelerators import accelerators
from hf_efficient.facts.prices import price, prices, providers


def test_an_offer():
    held = price("lambda", "NVIDIA A10")
    assert (held.usd_per_gpu_hour, held.gpus, held.date) == (1.29, 1, "2026-09-20")
    assert held.source == "https://lambda.ai/instances"


@pytest.mark.parametrize(
    ("gpus", "usd"), [(1, 4.29), (2, 4.19), (3, 4.19), (4, 4.09), (7, 4.09), (8, 3.99), (16, 3.99)]
)
def test_the_largest_instance_that_is_not_too_large(gpus, usd):
    assert price("Lambda", "h100-sxm", gpus=gpus).usd_per_gpu_hour == usd


def test_the_smallest_instance_where_all_are_larger():
    assert price("aws", "H100 SXM").usd_per_gpu_hour == 6.88


def test_spot():
    assert price("gcp", "H200", market="spot", gpus=8).usd_per_gpu_hour == 6.2607
    assert price("gcp", "H200", gpus=8).usd_per_gpu_hour == 10.4365


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: price("lamda", "H100 SXM"),
            "'lamda' is no provider with known figures. Did you mean lambda? "
            "Set efficiency.price_usd_per_hour to what you pay.",
        ),
        (lambda: price("lambda", "H300"), "'H300' is no accelerator with known figures. Did you mean "),
        (
            lambda: price("aws", "T4"),
            "aws has no known on_demand price for T4; known: A100 40GB SXM (on_demand), A100 80GB SXM (on_demand), "
            "H100 SXM (on_demand). Set efficiency.price_usd_per_hour to what you pay.",
        ),
    ],
)
def test_what_is_unknown_is_refused(call, told):
    with pytest.raises(SetupError) as error:
        call()
    assert str(error.value).startswith(told)


def test_every_row_is_whole():
    names = {one.name for one in accelerators()}
    for offer in prices():
        assert offer.accelerator in names
        assert offer.market in ("on_demand", "spot")
        assert 0.1 < offer.usd_per_gpu_hour < 20
        assert offer.source.startswith("https://") or offer.provider in ("aws", "azure")
        assert offer.read_at.startswith("https://")
        assert datetime.date(2026, 8, 1) <= datetime.date.fromisoformat(offer.date) <= datetime.date(2026, 11, 20)


def test_no_offer_is_listed_twice():
    keys = [(offer.provider, offer.accelerator, offer.market, offer.gpus) for offer in prices()]
    assert len(set(keys)) == len(keys)


def test_spot_is_cheaper():
    on_demand = {(offer.provider, offer.accelerator) for offer in prices() if offer.market == "on_demand"}
    for offer in prices():
        if offer.market == "spot" and (offer.provider, offer.accelerator) in on_demand:
            assert offer.usd_per_gpu_hour < price(offer.provider, offer.accelerator, gpus=offer.gpus).usd_per_gpu_hour


def test_every_accelerator_has_a_price():
    """The one whose form no source named has none."""
    priced = {offer.accelerator for offer in prices() if offer.market == "on_demand"}
    assert {one.name for one in accelerators()} - priced == {"A100 40GB PCIe"}


def test_the_providers():
    assert providers() == (
        "runpod-community",
        "runpod-secure",
        "lambda",
        "hyperstack",
        "nebius",
        "aws",
        "azure",
        "gcp",
        "verda",
        "hf-jobs",
        "jarvislabs",
        "crusoe",
        "akash",
        "mithril",
    )

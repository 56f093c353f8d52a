from __future__ import annotations

import io

import matplotlib.image
import numpy as np
import pytest
import torch
from torch import Tensor

from sctom.callbacks.awareness_figures import reliability_diagram, risk_coverage_diagram
from sctom.callbacks.reward_figures import png
from sctom.modules.confidence_metrics import ReliabilityBins
from sctom.modules.risk_coverage import RiskCoverageCurve


def answers(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(200, generator=generator)
    return confidence, torch.rand(200, generator=generator) < confidence


def table(seed: int) -> Tensor:
    metric = ReliabilityBins()
    metric.update(*answers(seed))
    return metric.compute()["bins"]


def curve(seed: int) -> Tensor:
    metric = RiskCoverageCurve()
    metric.update(*answers(seed))
    return metric.compute()["curve"]


def test_a_bin_is_drawn_where_it_is() -> None:
    bins = torch.tensor([[3, 0.15, 1 / 3], [0, 0, 0], [2, 0.8, 1]])
    axes, sizes = reliability_diagram({"after": bins}).axes
    line = axes.get_lines()[-1]
    assert line.get_label() == "after"
    assert line.get_xydata() == pytest.approx(np.array([[0.15, 1 / 3], [0.8, 1]]))
    assert [segment[1].tolist() for segment in sizes.collections[0].get_segments()] == [
        pytest.approx([0.15, 3]),
        pytest.approx([0.8, 2]),
    ]


def test_two_models_have_their_own_colour_and_name() -> None:
    figure = reliability_diagram({"before": table(0), "after": table(1)})
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "as sure as right",
        "before",
        "after",
    ]
    lines = [line for line in figure.axes[0].get_lines() if line.get_marker() in "os"]
    assert len({line.get_color() for line in lines}) == 2


def test_the_curve_is_drawn_as_it_is() -> None:
    found = curve(0)
    (axes,) = risk_coverage_diagram({"after": found}, risk=0.1).axes
    line = axes.get_lines()[-1]
    assert line.get_xydata() == pytest.approx(found[:, 1:].numpy())
    assert axes.get_lines()[0].get_ydata() == pytest.approx([0.1, 0.1])
    assert axes.get_ylim()[1] > found[:, 2].max()


def test_one_answer_can_be_drawn() -> None:
    metric = RiskCoverageCurve()
    metric.update(torch.tensor([0.5]), torch.tensor([True]))
    (axes,) = risk_coverage_diagram({"after": metric.compute()["curve"]}).axes
    assert axes.get_ylim()[1] > 0.05


@pytest.mark.parametrize(
    "figure",
    [
        lambda: reliability_diagram({"before": table(0), "after": table(1)}),
        lambda: risk_coverage_diagram({"before": curve(0), "after": curve(1)}),
    ],
)
def test_figures_are_pictures(figure) -> None:
    picture = matplotlib.image.imread(io.BytesIO(png(figure())))
    assert picture.shape[0] > 400 and picture.std() > 0.01

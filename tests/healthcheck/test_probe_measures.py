"""What the probes measure, on the CPU."""

import argparse

import pytest
import torch

from crds.agent_report import ProbeEnding
from healthcheck.measurements import Metric
from healthcheck.probes import copies, devices, gemm
from healthcheck.probes.gemm import ExactProduct
from healthcheck.probes.report import ProbeError, ProbeUnavailable

pytestmark = pytest.mark.real

CPU = argparse.Namespace(device="cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gemm.PLANS, "cpu", gemm.GemmPlan(32, 64, 60.0, 0.001))
    monkeypatch.setitem(copies.MEBIBYTES, "cpu", 1)


def test_products_are_measured_in_every_type() -> None:
    report = gemm.measure(CPU)
    metrics = {Metric.GEMM_BF16_TFLOPS, Metric.GEMM_FP16_TFLOPS, Metric.GEMM_FP32_TFLOPS}
    assert report.ending is ProbeEnding.PASSED
    assert metrics <= report.figures.keys()
    assert all(report.figures[metric] > 0 for metric in metrics)


def test_slow_types_get_smaller_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gemm.PLANS, "cpu", gemm.GemmPlan(32, 64, 1e-9, 0.001))
    assert gemm.measure(CPU).figures["gemm_fp32_size"] == 32


@pytest.mark.parametrize("dtype", gemm.DTYPES.values())
def test_one_wrong_element_is_found_and_a_right_product_is_not_blamed(dtype: torch.dtype) -> None:
    exact = ExactProduct(256, dtype, torch.device("cpu"))
    product = exact.left @ exact.right
    assert exact.wrong_rows(product) == 0
    product[7, 9] += 1
    assert exact.wrong_rows(product) == 1


def test_a_device_that_computes_wrongly_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    multiply = torch.matmul

    def flip_a_bit(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        multiply(left, right, out=out)
        out[0, 0] += 1
        return out

    monkeypatch.setattr(torch, "matmul", flip_a_bit)
    with pytest.raises(ProbeError, match="cpu computes wrongly: 1 of 64 rows of a bf16 product"):
        gemm.measure(CPU)


def test_copies_are_measured_both_ways() -> None:
    figures = copies.measure(CPU).figures
    assert set(figures) == {Metric.HOST_TO_DEVICE_GBPS, Metric.DEVICE_TO_HOST_GBPS}


def test_a_gpu_asked_for_where_torch_has_none_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ProbeUnavailable):
        devices.choose("cuda")

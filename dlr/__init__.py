"""dlr: elastic, self-healing PyTorch training on Kubernetes.

What training scripts import. Standard library only, and light; the commands live in `dlr.cli`.
"""

from dlr.progress import busy, checkpoint_saved, report, report_step

__all__ = ["busy", "checkpoint_saved", "report", "report_step"]

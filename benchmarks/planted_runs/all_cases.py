"""Every planted run, entered by its file."""

from __future__ import annotations

from planted_runs import faults_data, faults_machine, faults_pauses, faults_silent, faults_steps, healthy
from planted_runs.case import CASES

__all__ = ["CASES", "FILES"]

FILES = (faults_data, faults_steps, faults_pauses, faults_machine, faults_silent, healthy)

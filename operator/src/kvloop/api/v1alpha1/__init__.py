"""kvloop.io/v1alpha1. The models here are the one source of the CRD, its defaults, its rules and its reference."""

from kvloop.api.v1alpha1.resource import DisaggregatedInference, Spec, parse
from kvloop.api.v1alpha1.status import Status

__all__ = ["DisaggregatedInference", "Spec", "Status", "parse"]

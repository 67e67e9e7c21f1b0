"""All faults."""

from tests.faults import Fault, acting, acting_trained, policy, rewarding, rewarding_trained

FAULTS: tuple[Fault, ...] = (
    *acting.FAULTS,
    *acting_trained.FAULTS,
    *rewarding.FAULTS,
    *policy.FAULTS,
    *rewarding_trained.FAULTS,
)

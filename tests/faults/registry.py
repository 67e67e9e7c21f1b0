"""All faults."""

from tests.faults import (
    Fault,
    acting,
    acting_trained,
    answering,
    breaking,
    evaluating,
    filling,
    functions,
    growing,
    habits,
    inventing,
    mixing,
    observing,
    parting,
    policy,
    prompting,
    reading,
    referring,
    refusing,
    rewarding,
    rewarding_trained,
    sharing,
    swapping,
)

FAULTS: tuple[Fault, ...] = (
    *acting.FAULTS,
    *acting_trained.FAULTS,
    *rewarding.FAULTS,
    *functions.FAULTS,
    *policy.FAULTS,
    *rewarding_trained.FAULTS,
    *observing.FAULTS,
    *referring.FAULTS,
    *answering.FAULTS,
    *reading.FAULTS,
    *breaking.FAULTS,
    *parting.FAULTS,
    *prompting.FAULTS,
    *growing.FAULTS,
    *evaluating.FAULTS,
    *sharing.FAULTS,
    *inventing.FAULTS,
    *filling.FAULTS,
    *habits.FAULTS,
    *mixing.FAULTS,
    *refusing.FAULTS,
    *swapping.FAULTS,
)

UNEXPLAINED: tuple[Fault, ...] = (
    *functions.UNEXPLAINED, *prompting.UNEXPLAINED, *observing.UNEXPLAINED,
    *inventing.UNEXPLAINED, *habits.UNEXPLAINED, *policy.UNEXPLAINED,
)  # fmt: skip
"""Runs of which no finding says why: facts beside the fall, and what differs within groups, are told."""

"""Fitted priors, kept: one for all targets, or one for each target whose scores it reads."""

from __future__ import annotations

from leakscope.core import progress
from leakscope.core.data import ImageSet
from leakscope.core.prior import Prior, PriorPlan, PriorState
from leakscope.core.spec import describe, label
from leakscope.core.threat import PriorSource, View, charge_for_prior, fit_prior
from leakscope.store import Store

_SEED = 0  # of the prior itself: attacks and targets of any seed search the same one


def prior_plan(prior: Prior, public: str, target: str) -> PriorPlan:
    """What decides a fitted prior: its settings, the public pictures, and the target if it reads its scores."""
    first = prior.begins_with
    return PriorPlan(
        prior,
        public,
        _SEED,
        target=target if prior.reads_scores else None,
        start=None if first is None else prior_plan(first, public, target).key,
    )


def kept_priors(store: Store, public: ImageSet, target: str) -> PriorSource:
    """Priors from the store, fitted now when they are not there; `target` is the target's key.

    Scores that a kept prior read are charged again to an attacker who would have had to ask for them.
    """

    def source(prior: Prior, view: View) -> PriorState:
        plan = prior_plan(prior, public.digest(), target)
        with store.claim("prior", plan.key) as done:
            if done is not None:
                charge_for_prior(prior, view, done.record["notes"]["scored"])
                return PriorState(done.tensors(), done.record["notes"])
            start = None if prior.begins_with is None else source(prior.begins_with, view)
            progress.say(f"prior {label(prior)}: learning from {len(view.public)} public pictures")
            folder = store.scratch("prior", plan.key)
            state = fit_prior(prior, view, seed=plan.seed, checkpoint=folder, start=start)
            store.put("prior", plan.key, {"plan": describe(plan), "notes": state.notes}, state.tensors)
        return state

    return source

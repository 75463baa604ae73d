"""How an attacker learns what the target releases: for pictures of its own, and in expectation."""

from __future__ import annotations

import torch
from torch import Tensor

from leakscope.core.threat import Access, View

_PROBES = 8  # pictures sent twice to learn whether a release is random
_CHUNK = 256  # pictures encoded at once
_CACHE_BYTES = 2 * 1024**3


def child(rng: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator on `device` seeded from `rng`: noise is drawn where the features are."""
    seed = int(torch.randint(2**62, (1,), generator=rng, device=rng.device))
    return torch.Generator(device=device).manual_seed(seed)


def same_release(first: Tensor, second: Tensor) -> bool:
    """Whether two releases differ by no more than the round-off of another batch size."""
    return first.shape == second.shape and bool(nearly(first, second))


def nearly(first: Tensor, second: Tensor) -> Tensor:
    """The same of releases of one shape, as a tensor for which nobody waits."""
    return (first - second).abs().max() <= 1e-4 * first.abs().max()


def _alike(first: Tensor, second: Tensor) -> bool:
    """As `same_release`, feature by feature: one loud feature must not hide that the others differ."""
    if first.shape != second.shape:
        return False
    level = first.abs().amax(0).clamp_min(1e-3 * first.abs().median() + 1e-12)
    return bool(((first - second).abs() <= 1e-3 * level).float().mean() > 0.9)


def channel_statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel, shaped to broadcast: maps N×C×h×w, tokens N×T×D, vectors N×D.

    A channel that never moves gets the deviation one.
    """
    axes = {4: (0, 2, 3), 3: (0, 1)}.get(features.ndim, (0,))
    mean = features.mean(axes, keepdim=True)
    deviation = features.std(axes, correction=0, keepdim=True)
    return mean, torch.where(deviation > 1e-6 * mean.abs().clamp_min(1e-6), deviation, 1.0)


class PublicReleases:
    """Released features of the attacker's own pictures, drawn anew on request when the release is random.

    An attacker that holds the encoder and knows the defence computes them at home, which spends no
    queries and runs the encoder once. Otherwise it asks; when its budget is used up, the last
    answer it got for a picture serves again. `len` pictures of the public set are covered.
    """

    def __init__(self, view: View, rng: torch.Generator) -> None:
        self._view = view
        self._rng = child(rng, view.device)
        self._images = view.public.images
        self._probes = self._images[:_PROBES].to(view.device)
        self.at_home = Access.ENCODER in view and self._home_agrees()
        self._cache: Tensor | None = None
        #: Whether what is released for a picture depends on the others of its batch: then nothing is kept, and
        #: every batch is released whole.
        self.batchwise = False
        if self.at_home:
            first = self._release(self._encoded(self._probes))
            self.random = not same_release(first, self._release(self._encoded(self._probes)))
            self.count = len(self._images)
            self.batchwise = self._depends_on_batch()
            if not self.batchwise and first[:1].numel() * first.element_size() * self.count <= _CACHE_BYTES:
                clean = torch.cat([self._encode(chunk) for chunk in self._chunks()])
                self._cache = clean if self.random else self._release(clean)
        else:
            self._ask_all()

    def __len__(self) -> int:
        return self.count

    def images(self, index: Tensor) -> Tensor:
        return self._images[index.to(self._images.device)].to(self._view.device)

    def draw(self, index: Tensor) -> Tensor:
        """What is released for the pictures `index`, with fresh noise."""
        index = index.to(self._view.device)
        if self.at_home:
            features = self._cache[index] if self._cache is not None else self._encode(index)
            return self._release(features) if self.random or self._cache is None else features
        assert self._cache is not None
        if self.random and self._view.budget.left >= len(index):
            self._cache[index] = self._view.query(self.images(index))
        return self._cache[index]

    @property
    def fresh(self) -> bool:
        """Whether pictures beyond the public set may be asked about without end."""
        return self.at_home or self._view.budget.limit is None

    def clean(self, images: Tensor) -> Tensor:
        """What `again` needs of pictures of any kind: their features at home, encoded once; else the pictures."""
        if not self.at_home or self.batchwise:
            return images
        with torch.no_grad():
            features: Tensor = self._view.encoder(images.to(self._view.device))
        return features

    def again(self, clean: Tensor) -> Tensor:
        """A fresh release of what `clean` gave."""
        if not self.at_home:
            return self._view.query(clean.to(self._view.device))
        if self.batchwise:
            with torch.no_grad():
                clean = self._view.encoder(clean.to(self._view.device))
        return self._release(clean)

    def _home_agrees(self) -> bool:
        """Whether the defence the attacker believes in explains what it is sent.

        A defence it does not know looks like none: then the answers differ from a home release
        that has no randomness to blame, and only queries show the truth.
        """
        if self._view.budget.left < _PROBES:
            return True
        answers = self._view.query(self._probes)
        clean = self._encoded(self._probes)
        first, second = self._release(clean), self._release(clean)
        return not same_release(first, second) or same_release(first, answers)

    def _depends_on_batch(self) -> bool:
        """Whether pictures encoded (and released, if nothing is random) one by one differ from those of a batch."""
        together = self._encoded(self._probes)
        with torch.no_grad():
            alone = torch.cat([self._view.encoder(picture) for picture in self._probes.split(1)])
        if not _alike(together, alone):
            return True
        if self.random:
            return False
        return not _alike(self._release(together), torch.cat([self._release(row) for row in together.split(1)]))

    def _ask_all(self) -> None:
        left = self._view.budget.left
        spare = _PROBES if left >= 2 * _PROBES else 0
        self.count = int(min(len(self._images), left - spare))
        self.random = False
        if self.count == 0:
            return
        answers = [self._view.query(self._images[chunk].to(self._view.device)) for chunk in self._chunks()[:1]]
        fitting = max(2, _CACHE_BYTES // (answers[0][:1].numel() * answers[0].element_size()))
        self.count = min(self.count, fitting)
        answers += [self._view.query(self._images[chunk].to(self._view.device)) for chunk in self._chunks()[1:]]
        self._cache = torch.cat(answers)[: self.count]
        if spare:
            again = self._view.query(self._probes[: min(spare, self.count)])
            self.random = not same_release(self._cache[: len(again)], again)

    def _chunks(self) -> list[slice]:
        return [slice(low, min(low + _CHUNK, self.count)) for low in range(0, self.count, _CHUNK)]

    def _encode(self, index: Tensor | slice) -> Tensor:
        if isinstance(index, Tensor):
            index = index.to(self._images.device)
        return self._encoded(self._images[index].to(self._view.device))

    @torch.no_grad()
    def _encoded(self, pictures: Tensor) -> Tensor:
        features: Tensor = self._view.encoder(pictures)
        return features

    @torch.no_grad()
    def _release(self, features: Tensor) -> Tensor:
        return self._view.defense.release(features, self._rng)

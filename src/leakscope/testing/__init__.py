"""Contract suites that every method passes; subclass one in your own tests.

```python
from leakscope.testing import AttackContract

class TestMyAttack(AttackContract):
    @pytest.fixture
    def attack(self):
        return MyAttack()
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakscope.core.lazy_exports import lazily

__all__ = ["AttackContract", "DefenseContract", "MetricContract", "PriorContract"]

if TYPE_CHECKING:
    from leakscope.testing.attacks import AttackContract as AttackContract
    from leakscope.testing.defenses import DefenseContract as DefenseContract
    from leakscope.testing.metrics import MetricContract as MetricContract
    from leakscope.testing.priors import PriorContract as PriorContract
else:  # contracts need pytest, the simulated device does not
    _HOMES = {"Attack": "attacks", "Defense": "defenses", "Metric": "metrics", "Prior": "priors"}
    __getattr__ = lazily(__name__, {f"{kind}Contract": home for kind, home in _HOMES.items()})

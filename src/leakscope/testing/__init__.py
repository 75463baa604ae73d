"""Contract suites that every method passes; subclass one in your own tests.

```python
from leakscope.testing import AttackContract

class TestMyAttack(AttackContract):
    @pytest.fixture
    def attack(self):
        return MyAttack()
```
"""

from leakscope.testing.attacks import AttackContract
from leakscope.testing.defenses import DefenseContract
from leakscope.testing.metrics import MetricContract
from leakscope.testing.priors import PriorContract

__all__ = ["AttackContract", "DefenseContract", "MetricContract", "PriorContract"]

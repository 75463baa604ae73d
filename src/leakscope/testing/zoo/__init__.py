"""A zoo of fakes, which hide nothing, and of honest defences, which hide everything but the label.

An audit must not pass a fake, whatever its attacks find, and must be able to pass the honest:

```python
from leakscope.testing import zoo

base = zoo.network(pictures)
with zoo.enrolled():
    for fake in zoo.FAKES:
        model, defenses = fake.build(base, pictures)
        found = leakscope.audit(model, data, cut=zoo.CUT, defenses=defenses, gate="leak<=0.3")
        assert found.verdict != "pass"
```

Members are described in docs/concepts/fakes.md.
"""

from leakscope.testing.zoo.base import CUT, network
from leakscope.testing.zoo.honest import HONEST_DEFENCES, USELESS_DEFENCES
from leakscope.testing.zoo.members import FAKES, Fake, enrolled

__all__ = ["CUT", "FAKES", "HONEST_DEFENCES", "USELESS_DEFENCES", "Fake", "enrolled", "network"]

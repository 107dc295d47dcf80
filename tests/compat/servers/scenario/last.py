"""What may keep a server busy for long, and is therefore tried when all else is over."""

from sampling import AREA, sample
from steps import step
from world import TEXT, World


@step(AREA, "without max_tokens, to the end of the context", seconds=120)
def unlimited(world: World) -> None:
    (sequence,) = sample(world, tokens=(TEXT * 30)[:1000], max_tokens=None).sequences
    assert sequence.tokens, sequence

"""A reward for `tinker train sums.jsonl --grpo sum_reward.py`: an integer is a start, the right one
is the aim.
"""


def reward(answer: str, example: dict[str, object]) -> float:
    """Return 1 for the right sum, a half for another integer, else 0."""
    text = answer.strip()
    return 1.0 if text == str(example["expected"]) else 0.5 if text.isdigit() else 0.0

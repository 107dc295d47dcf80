"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker._older import combine_fwd_bwd_output_results, REDUCE_MAP
from tinker.types import ForwardBackwardOutput, LossFnOutput

__all__ = ["REDUCE_MAP", "ForwardBackwardOutput", "LossFnOutput", "combine_fwd_bwd_output_results"]

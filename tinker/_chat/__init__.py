"""From messages to tokens and weights, the same for training and serving.

Read in this order: ``messages`` brings messages and tools into the form that chat templates read,
``templates`` renders and encodes them, ``examples`` finds what each answer wrote and makes prompts
and examples.
"""

from tinker._chat.examples import Encoded as Encoded
from tinker._chat.examples import Ending as Ending
from tinker._chat.examples import Example as Example
from tinker._chat.examples import Unwritten as Unwritten
from tinker._chat.examples import encode_completion as encode_completion
from tinker._chat.examples import encode_examples as encode_examples
from tinker._chat.examples import encode_prompt as encode_prompt
from tinker._chat.examples import render_prompt as render_prompt
from tinker._chat.examples import take_one as take_one
from tinker._chat.messages import LARGEST_WEIGHT as LARGEST_WEIGHT
from tinker._chat.messages import ChatTurn as ChatTurn
from tinker._chat.messages import read_messages as read_messages
from tinker._chat.messages import read_options as read_options
from tinker._chat.templates import encode_prompt_text as encode_prompt_text
from tinker._chat.templates import has_template as has_template
from tinker._chat.templates import with_end as with_end

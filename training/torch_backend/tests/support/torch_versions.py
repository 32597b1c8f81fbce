"""What differs between the versions of PyTorch that the backend and its tests are for: all of it is in this file."""
import re

import torch

RELEASE = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])

# Calls that Gloo has not in this version, with the reason.
GLOO_LACKS = {"all_to_all": "came after 2.11"} if RELEASE < (2, 13) else {}

BARRIER_TAKES_A_TIMEOUT = RELEASE >= (2, 13)

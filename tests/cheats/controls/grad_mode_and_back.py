"""Changes a global switch and puts it back."""

import torch


def softmax(x):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        out = torch.softmax(x, dim=-1)
    torch.set_num_threads(before)
    return out.clone()

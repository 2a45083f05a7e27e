"""An EAGLE-3 head in plain torch, with vLLM's arithmetic and names of weights (`llama_eagle3.py`, 0.32).

One decoder layer that reads, at position t, the target's hidden states of t and the embedding of token t + 1, and
proposes token t + 2. A further step reads its own last output in place of the target's states, and step j proposes
token t + 2 + j. What can mislead: `layers` counts as vLLM does: n is the residual stream behind the n-th layer, before
the last norm; transformers' `hidden_states[-1]` is behind that norm. The `speculators` library (0.9.0) is not used: its
trainer wants an accelerator, and it needs packages that no lock here has.
"""

import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x, cosine, sine):
    """Rotary embedding of x, [batch, heads, tokens, head size], as in transformers' Llama."""
    left, right = x.chunk(2, -1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), -1)


class Attention(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        width, size = config["hidden_size"], config["head_dim"]
        self.heads, self.kv_heads, self.size = config["num_attention_heads"], config["num_key_value_heads"], size
        self.q_proj, self.o_proj = linear(2 * width, self.heads * size), linear(self.heads * size, width)
        self.k_proj, self.v_proj = (linear(2 * width, self.kv_heads * size) for _ in range(2))
        self.register_buffer(
            "turns", config["rope_theta"] ** -(torch.arange(0, size, 2).float() / size), persistent=False
        )

    def project(self, x, positions, queries):
        """(q, k, v) with rotary embedding, k and v repeated for every query head; `queries` is the first row that is
        queried.
        """
        angles = positions[:, None].float() * self.turns
        cosine, sine = angles.cos(), angles.sin()
        repeated = self.heads // self.kv_heads
        q = self.q_proj(x[:, queries:]).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k, v = (
            part(x).unflatten(-1, (self.kv_heads, self.size)).transpose(1, 2) for part in (self.k_proj, self.v_proj)
        )
        k = rotate(k, cosine, sine)
        return (
            rotate(q, cosine[queries:], sine[queries:]),
            k.repeat_interleave(repeated, 1),
            v.repeat_interleave(repeated, 1),
        )


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(width, inner), linear(width, inner), linear(inner, width)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.hidden_norm, self.post_attention_layernorm = (Norm(width, eps) for _ in range(3))
        self.self_attn, self.mlp = Attention(config), Mlp(width, config["intermediate_size"])


class Head(nn.Module):
    """`embedding` is the target's and frozen; everything else is learnt."""

    def __init__(self, config: dict, embedding: torch.Tensor):
        super().__init__()
        width, eps, count = (
            config["hidden_size"],
            config["rms_norm_eps"],
            len(config["eagle_aux_hidden_state_layer_ids"]),
        )
        self.fc_norm = nn.ModuleList(Norm(width, eps) for _ in range(count))
        self.fc = linear(count * width, width)
        self.midlayer, self.norm, self.lm_head = (
            Layer(config),
            Norm(width, eps),
            linear(width, config["draft_vocab_size"]),
        )
        self.register_buffer("embedding", embedding, persistent=False)

    def begin(self, target, vocabulary: torch.Tensor) -> None:
        """First weights: the target's last norm and output rows, behind a layer that at first changes its last states
        little.
        """
        width = self.norm.weight.shape[0]
        with torch.no_grad():
            self.lm_head.weight.copy_(target.get_output_embeddings().weight[vocabulary])
            self.norm.weight.copy_(target.base_model.norm.weight)
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, -width:] += torch.eye(width, device=self.fc.weight.device)
            for name, weight in self.midlayer.named_parameters():
                if weight.dim() == 2:
                    share = 0.3 if "o_proj" in name else 0.1 if "down_proj" in name else 1.0
                    nn.init.normal_(weight, std=share * weight.shape[1] ** -0.5)

    def join(self, states):
        """The target's states of some layers, concatenated, as one feature."""
        chunks = states.chunk(len(self.fc_norm), -1)
        return self.fc(torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], -1))

    def unroll(self, tokens, states, steps: int, first: int = 0):
        """Hidden states to propose from, one [batch, tokens - first, width] a step; row t - first is of the round that
        begins at t.

        A later step sees the target's states up to t and what earlier steps of its round left behind them, as in a
        server: their keys and values are at t + 1, t + 2, …"""
        layer, outputs = self.midlayer, []
        length = tokens.shape[1]
        feature, own = self.join(states), []
        places = torch.arange(length, device=tokens.device)
        seen = (places[None, :] <= places[first:, None])[None, None]
        for step in range(steps):
            begin = 0 if step == 0 else first
            shifted = functional.pad(tokens, (0, step + 1))[:, begin + step + 1 : length + step + 1]
            joined = torch.cat((layer.input_layernorm(self.embedding[shifted]), layer.hidden_norm(feature)), -1)
            q, k, v = layer.self_attn.project(joined, places[begin:] + step, first - begin)
            if step == 0:
                keys, values, feature = k, v, feature[:, first:]
                mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            else:
                own.append((k, v))
                scale = q.shape[-1] ** -0.5
                scores = (q @ keys.transpose(-1, -2) * scale).masked_fill(~seen, float("-inf"))
                own_scores = [(q * key).sum(-1, keepdim=True) * scale for key, _ in own]
                shares = torch.softmax(torch.cat([scores, *own_scores], -1), -1)
                mixed = shares[..., :length] @ values
                for place, (_, value) in enumerate(own):
                    mixed = mixed + shares[..., length + place, None] * value
            feature = feature + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
            feature = feature + layer.mlp(layer.post_attention_layernorm(feature))
            outputs.append(self.norm(feature))
        return outputs


def collect(target, layers: list[int]):
    """A function from tokens [batch, length] to the target's states of `layers` (counted from 1), concatenated."""
    kept = {}

    def hook(number):
        def keep(_, __, output):
            kept[number] = output[0] if isinstance(output, tuple) else output

        return keep

    for number in layers:
        target.base_model.layers[number - 1].register_forward_hook(hook(number))

    @torch.no_grad()
    def states(tokens):
        target.base_model(tokens, use_cache=False)
        return torch.cat([kept[number] for number in layers], -1)

    return states


def tensors(head: Head, vocabulary: torch.Tensor, size: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What vLLM loads: `d2t` is the difference of a token's numbers in target and draft, `t2d` whether the draft has a
    token of the target. A head of the whole vocabulary has neither: vLLM does not take them.
    """
    weights = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in head.state_dict().items()}
    if len(vocabulary) == size:
        return weights
    drafted = torch.zeros(size, dtype=torch.bool)
    drafted[vocabulary] = True
    return weights | {"d2t": vocabulary.cpu() - torch.arange(len(vocabulary)), "t2d": drafted}

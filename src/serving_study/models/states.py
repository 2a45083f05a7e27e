"""The state that a linear-attention layer keeps for a sequence in place of keys and values, by each family's
arithmetic.

Read in vLLM 0.32.0 (`model_executor/layers/mamba/mamba_utils.py` and the models' own). A state is the last inputs of a
convolution and, except for short convolutions, one matrix a head. What can mislead: matrices have the model's number
format unless its file says otherwise (kimi's: float32); speculation lengthens the convolution.

    >>> from serving_study.models import shapes
    >>> shapes.load("qwen3.5-27b").state_bytes_per_layer()
    3207168
"""

from ..errors import ModelError

NUMBER_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def bytes_per_layer(config: dict, number_bytes: int, *, tp: int = 1, speculative_tokens: int = 0) -> int:
    """Bytes of the state of one layer on a rank. Raises ModelError for a family whose state is not known."""
    get, family = config.get, config.get("model_type", "")
    stated_bytes = NUMBER_BYTES.get(get("mamba_ssm_dtype") or get("mamba_ssm_cache_dtype"))
    matrix_bytes = stated_bytes or number_bytes
    kernel = get("linear_conv_kernel_dim") or get("mamba_d_conv") or get("conv_kernel") or get("conv_L_cache") or 0
    inputs = kernel - 1 + speculative_tokens
    if get("linear_key_head_dim"):
        keys = get("linear_num_key_heads") * get("linear_key_head_dim")
        values = get("linear_num_value_heads") * get("linear_value_head_dim")
        matrix = values * get("linear_key_head_dim")
        return (inputs * (2 * keys + values) * number_bytes + matrix * matrix_bytes) // tp
    if family == "kimi_linear":
        linear = get("linear_attn_config") or {}
        heads, size = get("linear_num_heads") or linear["num_heads"], get("linear_head_dim") or linear["head_dim"]
        inputs = (get("linear_conv_kernel_dim") or linear["short_conv_kernel_size"]) - 1 + speculative_tokens
        return (inputs * 3 * heads * size * number_bytes + heads * size * size * (stated_bytes or 4)) // tp
    if family.startswith("minimax"):
        size = get("head_dim") or get("hidden_size") // get("num_attention_heads")
        return get("num_attention_heads") * size * size * matrix_bytes // tp
    if family.startswith("lfm2"):
        return inputs * (get("conv_dim") or get("hidden_size")) * number_bytes // tp
    if family in ("jamba", "mamba", "falcon_mamba"):
        width = get("mamba_expand", 2) * get("hidden_size") if family == "jamba" else get("intermediate_size")
        size = get("mamba_d_state") or get("state_size")
        return width * (inputs * number_bytes + size * matrix_bytes) // tp
    if heads := get("mamba_n_heads") or get("mamba_num_heads") or get("n_mamba_heads") or get("num_heads"):
        size = get("mamba_d_head") or get("mamba_head_dim") or get("mamba_headdim") or get("head_dim")
        state = get("mamba_d_state") or get("ssm_state_size") or get("state_size")
        groups = get("mamba_n_groups") or get("mamba_ngroups") or get("n_groups") or 1
        groups += 0 if groups % tp == 0 else tp - groups  # each rank needs whole ones
        channels = heads * size + 2 * groups * state
        return (inputs * channels * number_bytes + heads * size * state * matrix_bytes) // tp
    raise ModelError(
        "the state of this family's layers is not known", value=family, allowed="a family with its own rule"
    )

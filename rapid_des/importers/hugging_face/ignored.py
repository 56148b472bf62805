"""Keys of Hugging Face configs that change neither a tensor's shape nor which kernels run, by the reason."""

from __future__ import annotations

from collections.abc import Mapping

DROPOUT = "dropout is the job's (training.dropout)"
SCALES = "it scales or bounds numbers inside kernels"
_GENERATION = "it says how text is generated, chosen or counted"

OF_CONFIGS: Mapping[str, frozenset[str]] = {
    DROPOUT: frozenset((
        "activation_dropout", "attention_dropout", "attention_dropout_prob", "attention_probs_dropout_prob",
        "attn_pdrop", "dropout", "embd_dropout", "embd_pdrop", "hidden_dropout", "hidden_dropout_prob",
        "layerdrop", "resid_pdrop",
    )),
    SCALES: frozenset((
        "attention_multiplier", "embedding_multiplier", "layer_norm_eps", "layer_norm_epsilon", "logit_scale",
        "logits_scaling", "norm_eps", "query_pre_attn_scalar", "residual_multiplier", "rms_norm_eps",
        "routed_scaling_factor", "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "swiglu_limit",
    )),
    "it initialises weights": frozenset(("initializer_factor", "initializer_range")),
    "it says which experts tokens choose, not how many": frozenset((
        "n_group", "norm_topk_prob", "router_dtype", "router_jitter_noise", "scoring_func", "topk_group",
        "topk_method",
    )),
    "it weighs terms of the loss": frozenset((
        "aux_loss_alpha", "output_router_logits", "router_aux_loss_coef", "router_z_loss_coef", "seq_aux",
    )),
    "it changes by which angles positions rotate, no shape": frozenset((
        "initial_context_length", "model_max_length", "rope_interleaved", "rope_local_base_freq",
        "rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base", "use_mrope",
    )),
    "formats are the job's (precision), not the model's": frozenset((
        "dtype", "quantization_config", "torch_dtype", "use_bfloat16",
    )),
    "it is how the library runs the model, which a job says": frozenset((
        "_attn_implementation", "apply_residual", "attn_implementation", "cache_implementation",
        "chunk_size_feed_forward", "ep_size", "gradient_checkpointing", "is_decoder", "output_attentions",
        "output_hidden_states", "pretraining_tp", "reorder_and_upcast_attn", "return_dict", "torchscript",
        "use_cache",
    )),
    "num_experts_per_tok says it": frozenset(("experts_per_token",)),
    "it belongs to a head that sorts texts": frozenset((
        "id2label", "label2id", "problem_type", "summary_activation", "summary_first_dropout",
        "summary_proj_to_logits", "summary_type", "summary_use_proj",
    )),
    "it names things": frozenset((
        "_name_or_path", "architectures", "auto_map", "finetuning_task", "is_llama_config", "model_type",
        "prefix", "task_specific_params", "tokenizer_class", "transformers_version", "unsloth_version",
    )),
    "it is a token's number": frozenset((
        "bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_bos_token_id",
        "forced_eos_token_id", "pad_token_id", "sep_token_id",
    )),
    _GENERATION: frozenset((
        "bad_words_ids", "begin_suppress_tokens", "cross_attention_hidden_size", "diversity_penalty",
        "do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
        "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
        "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty",
        "return_dict_in_generate", "suppress_tokens", "temperature", "tf_legacy_loss", "top_k", "top_p",
        "typical_p",
    )),
}  # fmt: skip
"""The ignored keys by the reason; older transformers also write keys of generation, tasks and tokenizers."""

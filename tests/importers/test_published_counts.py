"""More published checkpoints: what their config.json says, and how many parameters they have.

Counts are of the tensors of the text model alone, without layers that predict further tokens.
"""

import json

import pytest

from rapid_des.errors import ConfigError
from rapid_des.importers.hugging_face import import_hugging_face

PUBLISHED = {
    "vit-base-patch16-224": (
        dict(
            model_type="vit", attention_probs_dropout_prob=0.0, encoder_stride=16, hidden_act="gelu",
            hidden_dropout_prob=0.0, hidden_size=768, image_size=224, initializer_range=0.02,
            intermediate_size=3072, layer_norm_eps=1e-12, num_attention_heads=12, num_channels=3,
            num_hidden_layers=12, num_labels=1000, patch_size=16, qkv_bias=True,
        ),
        86_567_656,
    ),
    "bert-base-uncased": (  # BertForMaskedLM; 592,128 are of what stands before its head
        dict(
            model_type="bert", attention_probs_dropout_prob=0.1, hidden_act="gelu", hidden_dropout_prob=0.1,
            hidden_size=768, intermediate_size=3072, layer_norm_eps=1e-12, max_position_embeddings=512,
            num_attention_heads=12, num_hidden_layers=12, pad_token_id=0, position_embedding_type="absolute",
            type_vocab_size=2, vocab_size=30522,
        ),
        109_514_298 - 592_128,
    ),
    "roberta-base": (  # RobertaForMaskedLM has 124,697,433
        dict(
            model_type="roberta", hidden_act="gelu", hidden_size=768, intermediate_size=3072,
            max_position_embeddings=514, num_attention_heads=12, num_hidden_layers=12, type_vocab_size=1,
            vocab_size=50265,
        ),
        124_697_433 - 592_128,
    ),
    "minimax-m2": (  # 62 layers of 3,668,718,848: the card says 229B
        dict(
            model_type="minimax_m2", attn_type_list=[1] * 62, head_dim=128, hidden_act="silu",
            hidden_size=3072, intermediate_size=1536, layernorm_mlp_beta=1.0, max_position_embeddings=196608,
            mlp_intermediate_size=8192, mtp_transformer_layers=1, num_attention_heads=48,
            num_experts_per_tok=8, num_hidden_layers=62, num_key_value_heads=8, num_local_experts=256,
            num_mtp_modules=3, qk_norm_type="per_layer", rms_norm_eps=1e-06, rope_theta=5000000,
            rotary_dim=64, scoring_func="sigmoid", shared_intermediate_size=0, tie_word_embeddings=False,
            use_mtp=True, use_qk_norm=True, use_routing_bias=True, vocab_size=200064,
        ),
        228_689_764_864,
    ),
    "minimax-m1": (  # 70 layers of 5,687,693,312 and 10 of 5,549,273,088: the card says 456B
        dict(
            model_type="minimax_m1", attn_type_list=[*[0] * 7, 1] * 10, head_dim=128, hidden_act="silu",
            hidden_size=6144, intermediate_size=9216, layernorm_full_attention_alpha=3.5565588200778455,
            layernorm_linear_attention_beta=1.0, layernorm_mlp_alpha=3.5565588200778455,
            max_position_embeddings=10240000, num_attention_heads=64, num_experts_per_tok=2,
            num_hidden_layers=80, num_key_value_heads=8, num_local_experts=32, postnorm=True,
            rms_norm_eps=1e-05, rope_theta=10000000, rotary_dim=64, shared_intermediate_size=0,
            shared_moe_mode="sigmoid", sliding_window=None, tie_word_embeddings=False, vocab_size=200064,
        ),
        456_089_655_296,
    ),
    "deepseek-v3.2": (  # DeepSeek-V3, and 13,959,424 of an indexer in each of 61 layers
        dict(
            model_type="deepseek_v32", attention_bias=False, ep_size=1, first_k_dense_replace=3,
            hidden_act="silu", hidden_size=7168, index_head_dim=128, index_n_heads=64, index_topk=2048,
            intermediate_size=18432, kv_lora_rank=512, max_position_embeddings=163840,
            moe_intermediate_size=2048, moe_layer_freq=1, n_group=8, n_routed_experts=256,
            n_shared_experts=1, norm_topk_prob=True, num_attention_heads=128, num_experts_per_tok=8,
            num_hidden_layers=61, num_key_value_heads=128, num_nextn_predict_layers=1, q_lora_rank=1536,
            qk_nope_head_dim=128, qk_rope_head_dim=64, rms_norm_eps=1e-06, rope_theta=10000,
            routed_scaling_factor=2.5, scoring_func="sigmoid", tie_word_embeddings=False, topk_group=4,
            topk_method="noaux_tc", v_head_dim=128, vocab_size=129280,
            quantization_config=dict(quant_method="fp8"),
        ),
        671_026_419_200 + 61 * 13_959_424,
    ),
    "qwen3-next-80b-a3b": (
        dict(
            model_type="qwen3_next", attention_bias=False, decoder_sparse_step=1,
            full_attention_interval=4, head_dim=256, hidden_act="silu", hidden_size=2048,
            intermediate_size=5120, linear_conv_kernel_dim=4, linear_key_head_dim=128,
            linear_num_key_heads=16, linear_num_value_heads=32, linear_value_head_dim=128,
            max_position_embeddings=262144, mlp_only_layers=[], moe_intermediate_size=512,
            norm_topk_prob=True, num_attention_heads=16, num_experts=512, num_experts_per_tok=10,
            num_hidden_layers=48, num_key_value_heads=2, partial_rotary_factor=0.25, rms_norm_eps=1e-06,
            rope_theta=10000000, shared_expert_intermediate_size=512, tie_word_embeddings=False,
            vocab_size=151936, use_sliding_window=False,
        ),
        79_674_391_296,
    ),
    "qwen3.5-397b-a17b": (
        dict(
            model_type="qwen3_5_moe", image_token_id=1, text_config=dict(model_type="qwen3_5_moe_text",
            attention_bias=False, attn_output_gate=True, full_attention_interval=4, head_dim=256,
            hidden_act="silu", hidden_size=4096, linear_conv_kernel_dim=4, linear_key_head_dim=128,
            linear_num_key_heads=16, linear_num_value_heads=64, linear_value_head_dim=128,
            mamba_ssm_dtype="float32", max_position_embeddings=262144, mlp_only_layers=[],
            moe_intermediate_size=1024, mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
            num_attention_heads=32, num_experts=512, num_experts_per_tok=10, num_hidden_layers=60,
            num_key_value_heads=2, shared_expert_intermediate_size=1024, tie_word_embeddings=False,
            vocab_size=248320, rope_parameters=dict(partial_rotary_factor=0.25, rope_theta=10000000.0)),
            vision_config=dict(depth=27), tie_word_embeddings=False,
        ),
        396_346_350_336,
    ),
    "llama3.1-405b": (
        dict(
            model_type="llama", hidden_act="silu", attention_bias=False, mlp_bias=False,
            tie_word_embeddings=False, rms_norm_eps=1e-05, max_position_embeddings=8192, hidden_size=16384,
            num_hidden_layers=126, num_attention_heads=128, num_key_value_heads=8, intermediate_size=53248,
            vocab_size=128256,
        ),
        405_853_388_800,
    ),
    "smollm2-1.7b": (
        dict(
            model_type="llama", hidden_act="silu", attention_bias=False, mlp_bias=False,
            tie_word_embeddings=True, rms_norm_eps=1e-05, max_position_embeddings=8192, hidden_size=2048,
            num_hidden_layers=24, num_attention_heads=32, num_key_value_heads=32, intermediate_size=8192,
            vocab_size=49152, is_llama_config=True, rope_interleaved=False,
        ),
        1_711_376_384,
    ),
    "mixtral-8x22b": (
        dict(
            model_type="mixtral", hidden_act="silu", hidden_size=6144, intermediate_size=16384,
            max_position_embeddings=65536, num_attention_heads=48, num_experts_per_tok=2,
            num_hidden_layers=56, num_key_value_heads=8, num_local_experts=8, sliding_window=None,
            tie_word_embeddings=False, vocab_size=32000, router_aux_loss_coef=0.001,
        ),
        140_620_634_112,
    ),
    "mistral-large-2407": (
        dict(
            model_type="mistral", head_dim=128, hidden_act="silu", hidden_size=12288,
            intermediate_size=28672, max_position_embeddings=131072, num_attention_heads=96,
            num_hidden_layers=88, num_key_value_heads=8, sliding_window=None, tie_word_embeddings=False,
            vocab_size=32768,
        ),
        122_610_069_504,
    ),
    "qwen2.5-7b": (
        dict(
            model_type="qwen2", hidden_act="silu", hidden_size=3584, intermediate_size=18944,
            max_position_embeddings=32768, max_window_layers=28, num_attention_heads=28,
            num_hidden_layers=28, num_key_value_heads=4, tie_word_embeddings=False,
            use_sliding_window=False, sliding_window=131072, use_mrope=False, vocab_size=152064,
        ),
        7_615_616_512,
    ),
    "qwen3-32b": (
        dict(
            model_type="qwen3", attention_bias=False, head_dim=128, hidden_act="silu", hidden_size=5120,
            intermediate_size=25600, max_position_embeddings=40960, max_window_layers=64,
            num_attention_heads=64, num_hidden_layers=64, num_key_value_heads=8, tie_word_embeddings=False,
            use_sliding_window=False, vocab_size=151936,
        ),
        32_762_123_264,
    ),
    "qwen3-coder-480b": (
        dict(
            model_type="qwen3_moe", attention_bias=False, decoder_sparse_step=1, head_dim=128,
            hidden_act="silu", max_position_embeddings=40960, mlp_only_layers=[], norm_topk_prob=True,
            sliding_window=None, tie_word_embeddings=False, use_sliding_window=False, vocab_size=151936,
            num_experts_per_tok=8, rope_scaling=None, output_router_logits=False,
            router_aux_loss_coef=0.001, hidden_size=6144, num_hidden_layers=62, num_attention_heads=96,
            num_key_value_heads=8, num_experts=160, moe_intermediate_size=2560, intermediate_size=8192,
            shared_expert_intermediate_size=0, qkv_bias=False, use_qk_norm=True,
        ),
        480_154_875_392,
    ),
    "deepseek-v2": (
        dict(
            model_type="deepseek_v2", first_k_dense_replace=1, hidden_act="silu", hidden_size=5120,
            intermediate_size=12288, kv_lora_rank=512, max_position_embeddings=163840,
            moe_intermediate_size=1536, moe_layer_freq=1, n_group=8, n_routed_experts=160,
            n_shared_experts=2, norm_topk_prob=False, num_attention_heads=128, num_experts_per_tok=6,
            num_hidden_layers=60, num_key_value_heads=128, q_lora_rank=1536, qk_nope_head_dim=128,
            qk_rope_head_dim=64, rope_scaling={"type": "yarn"}, routed_scaling_factor=16.0,
            scoring_func="softmax", seq_aux=True, tie_word_embeddings=False, topk_group=3,
            topk_method="group_limited_greedy", v_head_dim=128, vocab_size=102400, attention_bias=False,
            ep_size=1, aux_loss_alpha=0.001,
        ),
        235_741_434_880,
    ),
    "kimi-k2": (
        dict(
            model_type="kimi_k2", first_k_dense_replace=1, hidden_act="silu", hidden_size=7168,
            intermediate_size=18432, kv_lora_rank=512, max_position_embeddings=131072,
            moe_intermediate_size=2048, moe_layer_freq=1, n_group=1, n_routed_experts=384,
            n_shared_experts=1, norm_topk_prob=True, num_attention_heads=64, num_experts_per_tok=8,
            num_hidden_layers=61, num_key_value_heads=64, num_nextn_predict_layers=0, q_lora_rank=1536,
            qk_nope_head_dim=128, qk_rope_head_dim=64, routed_scaling_factor=2.827, scoring_func="sigmoid",
            seq_aux=True, tie_word_embeddings=False, topk_group=1, topk_method="noaux_tc", v_head_dim=128,
            vocab_size=163840, attention_bias=False, ep_size=1, aux_loss_alpha=0.001,
            quantization_config={"quant_method": "fp8"},
        ),
        1_026_408_232_448,
    ),
    "glm-4.5": (
        dict(
            model_type="glm4_moe", attention_bias=True, attention_dropout=0.0, hidden_act="silu",
            head_dim=128, hidden_size=5120, partial_rotary_factor=0.5, intermediate_size=12288,
            max_position_embeddings=131072, moe_intermediate_size=1536, norm_topk_prob=True,
            num_attention_heads=96, n_group=1, topk_group=1, n_routed_experts=160, n_shared_experts=1,
            routed_scaling_factor=2.5, num_experts_per_tok=8, first_k_dense_replace=3, num_hidden_layers=92,
            num_key_value_heads=8, num_nextn_predict_layers=1, rope_scaling=None, tie_word_embeddings=False,
            use_qk_norm=True, vocab_size=151552,
        ),
        352_797_829_024,
    ),
    "gemma-3-27b": (
        dict(
            model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"], boi_token_index=255999,
            eoi_token_index=256000, eos_token_id=[1, 106], image_token_index=262144, initializer_range=0.02,
            mm_tokens_per_image=256, text_config={"head_dim": 128, "hidden_size": 5376, "intermediate_size":
            21504, "model_type": "gemma3_text", "num_attention_heads": 32, "num_hidden_layers": 62,
            "num_key_value_heads": 16, "query_pre_attn_scalar": 168, "rope_scaling": {"factor": 8.0,
            "rope_type": "linear"}, "sliding_window": 1024}, vision_config={"hidden_size": 1152},
        ),
        27_009_346_304,
    ),
    "gemma2-9b": (
        dict(
            model_type="gemma2", attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
            cache_implementation="hybrid", head_dim=256, hidden_act="gelu_pytorch_tanh",
            hidden_activation="gelu_pytorch_tanh", hidden_size=3584, intermediate_size=14336,
            max_position_embeddings=8192, num_attention_heads=16, num_hidden_layers=42,
            num_key_value_heads=8, query_pre_attn_scalar=256, sliding_window=4096, sliding_window_size=4096,
            vocab_size=256000,
        ),
        9_241_705_984,
    ),
    "olmo-2-32b": (
        dict(
            model_type="olmo2", attention_bias=False, hidden_act="silu", hidden_size=5120,
            intermediate_size=27648, max_position_embeddings=4096, num_attention_heads=40,
            num_hidden_layers=64, num_key_value_heads=8, rms_norm_eps=1e-06, tie_word_embeddings=False,
            vocab_size=100352,
        ),
        32_234_279_936,
    ),
    "phi-4": (
        dict(
            model_type="phi3", attention_bias=False, embd_pdrop=0.0, hidden_act="silu", hidden_size=5120,
            intermediate_size=17920, max_position_embeddings=16384, num_attention_heads=40,
            num_hidden_layers=40, num_key_value_heads=10, original_max_position_embeddings=16384,
            partial_rotary_factor=1.0, resid_pdrop=0.0, rope_scaling=None, rope_theta=250000,
            sliding_window=None, tie_word_embeddings=False, vocab_size=100352,
        ),
        14_659_507_200,
    ),
    "granite-3.1-8b": (
        dict(
            model_type="granite", attention_bias=False, attention_multiplier=0.0078125,
            embedding_multiplier=12.0, hidden_act="silu", hidden_size=4096, intermediate_size=12800,
            logits_scaling=16.0, max_position_embeddings=131072, mlp_bias=False, num_attention_heads=32,
            num_hidden_layers=40, num_key_value_heads=8, residual_multiplier=0.22, tie_word_embeddings=True,
            vocab_size=49155,
        ),
        8_170_848_256,
    ),
    "gpt2-xl": (
        dict(
            model_type="gpt2", activation_function="gelu_new", n_ctx=1024, n_embd=1600, n_head=25,
            n_layer=48, n_positions=1024, vocab_size=50257, output_past=True,
        ),
        1_557_611_200,
    ),
    "opt-13b": (
        dict(
            model_type="opt", activation_function="relu", do_layer_norm_before=True, ffn_dim=20480,
            hidden_size=5120, max_position_embeddings=2048, num_attention_heads=40, num_hidden_layers=40,
            vocab_size=50272, word_embed_proj_dim=5120,
        ),
        12_853_473_280,
    ),
    "pythia-6.9b": (
        dict(
            model_type="gpt_neox", hidden_act="gelu", hidden_size=4096, intermediate_size=16384,
            max_position_embeddings=2048, num_attention_heads=32, num_hidden_layers=32,
            rotary_emb_base=10000, rotary_pct=0.25, tie_word_embeddings=False, use_parallel_residual=True,
            vocab_size=50432,
        ),
        6_857_302_016,
    ),
    "starcoder2-3b": (
        dict(
            model_type="starcoder2", attention_dropout=0.1, activation_function="gelu",
            hidden_act="gelu_pytorch_tanh", hidden_size=3072, initializer_range=0.018,
            intermediate_size=12288, layer_norm_epsilon=1e-05, max_position_embeddings=16384,
            mlp_type="default", norm_epsilon=1e-05, norm_type="layer_norm", num_attention_heads=24,
            num_hidden_layers=30, num_key_value_heads=2, residual_dropout=0.1, embedding_dropout=0.1,
            rope_theta=999999.4, sliding_window=4096, use_bias=True, vocab_size=49152, use_cache=True,
        ),
        3_030_371_328,
    ),
    "starcoder2-7b": (
        dict(
            model_type="starcoder2", hidden_act="gelu_pytorch_tanh", hidden_size=4608,
            intermediate_size=18432, max_position_embeddings=16384, num_attention_heads=36,
            num_hidden_layers=32, num_key_value_heads=4, sliding_window=4096, use_bias=True,
            vocab_size=49152,
        ),
        7_173_923_840,
    ),
    "command-r7b": (
        dict(
            model_type="cohere2", attention_bias=False, head_dim=128, hidden_act="silu", hidden_size=4096,
            intermediate_size=14336, layer_norm_eps=1e-05, layer_switch=4, logit_scale=0.25,
            max_position_embeddings=8192, num_attention_heads=32, num_hidden_layers=32,
            num_key_value_heads=8, order_of_interleaved_layers="local_attn_first",
            position_embedding_type="rope_gptj", rope_scaling=None, rotary_pct=1.0, sliding_window=4096,
            sliding_window_pattern=4, use_embedding_sharing=True, use_gated_activation=True,
            use_parallel_block=True, use_parallel_embedding=True, vocab_size=256000,
        ),
        8_028_033_024,
    ),
    "llama4-scout": (
        dict(
            model_type="llama4", architectures=["Llama4ForConditionalGeneration"], boi_token_index=200080,
            eoi_token_index=200081, image_token_index=200092, text_config={"model_type": "llama4_text",
            "attention_bias": False, "attention_chunk_size": 8192, "attn_scale": 0.1,
            "attn_temperature_tuning": True, "floor_scale": 8192, "for_llm_compressor": False, "head_dim":
            128, "hidden_act": "silu", "hidden_size": 5120, "interleave_moe_layer_step": 1,
            "intermediate_size": 8192, "intermediate_size_mlp": 16384, "max_position_embeddings": 10485760,
            "moe_layers": list(range(48)), "no_rope_layers": [1, 1, 1, 0] * 12, "num_attention_heads": 40,
            "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8,
            "num_local_experts": 16, "output_router_logits": False, "rope_scaling": {"factor": 16.0},
            "rope_theta": 500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
            "tie_word_embeddings": False, "use_cache": True, "use_qk_norm": True, "vocab_size": 202048},
            vision_config={"hidden_size": 1408},
        ),
        107_769_861_120,
    ),
    "llama4-maverick": (
        dict(
            model_type="llama4", boi_token_index=200080, eoi_token_index=200081, image_token_index=200092,
            text_config={"model_type": "llama4_text", "attention_bias": False, "attention_chunk_size": 8192,
            "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "interleave_moe_layer_step": 2,
            "intermediate_size": 8192, "intermediate_size_mlp": 16384, "max_position_embeddings": 1048576,
            "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers": 48,
            "num_key_value_heads": 8, "num_local_experts": 128, "no_rope_layers": [], "use_qk_norm": False,
            "vocab_size": 202048}, vision_config={"hidden_size": 1408},
        ),
        400_711_848_960,
    ),
    "seed-oss-36b": (
        dict(
            model_type="seed_oss", attention_bias=True, attention_out_bias=False, head_dim=128,
            hidden_act="silu", hidden_size=5120, intermediate_size=27648, max_position_embeddings=524288,
            mlp_bias=False, num_attention_heads=80, num_hidden_layers=64, num_key_value_heads=8,
            residual_dropout=0.1, tie_word_embeddings=False, vocab_size=155136,
        ),
        36_151_104_512,
    ),
    "mistral-small-3.1": (
        dict(
            model_type="mistral3", image_token_index=10, multimodal_projector_bias=False,
            projector_hidden_act="gelu", spatial_merge_size=2, text_config={"model_type": "mistral",
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
            "initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings": 131072,
            "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps":
            1e-05, "rope_theta": 1000000000.0, "sliding_window": None, "use_cache": True, "vocab_size":
            131072}, vision_config={"hidden_size": 1024}, vision_feature_layer=-1,
        ),
        23_572_403_200,
    ),
    "granite-4.0-h-tiny": (
        dict(
            model_type="granitemoehybrid", attention_bias=False, attention_dropout=0.0,
            attention_multiplier=0.0078125, embedding_multiplier=12, hidden_act="silu", hidden_size=1536,
            init_method="mup", initializer_range=0.1, intermediate_size=512, layer_types=["mamba", "mamba",
            "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba"] * 4,
            logits_scaling=6, mamba_chunk_size=256, mamba_conv_bias=True, mamba_d_conv=4, mamba_d_head=64,
            mamba_d_state=128, mamba_expand=2, mamba_n_groups=1, mamba_n_heads=48, mamba_proj_bias=False,
            max_position_embeddings=131072, normalization_function="rmsnorm", num_attention_heads=12,
            num_experts_per_tok=6, num_hidden_layers=40, num_key_value_heads=4, num_local_experts=64,
            output_router_logits=False, position_embedding_type="nope", residual_multiplier=0.22,
            rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000, router_aux_loss_coef=0.0,
            shared_intermediate_size=1024, tie_word_embeddings=True, vocab_size=100352,
        ),
        6_939_037_248,
    ),
    "granite-4.0-h-small": (
        dict(
            model_type="granitemoehybrid", attention_bias=False, hidden_act="silu", hidden_size=4096,
            intermediate_size=768, layer_types=["mamba", "mamba", "mamba", "mamba", "mamba", "attention",
            "mamba", "mamba", "mamba", "mamba"] * 4, mamba_chunk_size=256, mamba_conv_bias=True,
            mamba_d_conv=4, mamba_d_head=64, mamba_d_state=128, mamba_expand=2, mamba_n_groups=1,
            mamba_n_heads=128, mamba_proj_bias=False, max_position_embeddings=131072,
            num_attention_heads=32, num_experts_per_tok=10, num_hidden_layers=40, num_key_value_heads=8,
            num_local_experts=72, position_embedding_type="nope", shared_intermediate_size=1536,
            tie_word_embeddings=True, vocab_size=100352,
        ),
        32_207_337_984,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name, tmp_path):
    config, published = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert import_hugging_face(tmp_path).model.parameters == published


def imported(tmp_path, name, **changed):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name][0] | changed))
    return import_hugging_face(tmp_path, ignore=["new"])


def test_llama_4_rotates_in_chunks_and_every_fourth_layer_sees_all(tmp_path):
    spec = imported(tmp_path, "llama4-maverick").model.spec
    (usual, *others) = [spec.attention] + [each.attention for each in spec.exceptions if each.attention]
    assert (usual.chunk, usual.rotary) == (8192, None)
    assert [(each.chunk, each.rotary) for each in others] == [(None, 0.0)]
    (sparse,) = [each for each in spec.exceptions if each.feed_forward]  # every second layer has experts
    assert (sparse.start, sparse.every, sparse.feed_forward.shared_hidden) == (1, 2, 8192)


def test_granite_4_has_attention_in_one_layer_of_ten(tmp_path):
    spec = imported(tmp_path, "granite-4.0-h-tiny").model.spec
    (attention,) = (each for each in spec.exceptions if each.attention)
    assert spec.attention.state == 128  # Mamba-2
    assert (attention.start, attention.every) == (5, 10)
    dense = imported(tmp_path, "granite-4.0-h-tiny", num_local_experts=0).model.spec
    assert dense.feed_forward.hidden == 1024


def test_of_nested_configs_the_rest_is_named(tmp_path):
    left = {each.key.split(".")[0] for each in imported(tmp_path, "mistral-small-3.1").ignored}
    assert "vision_config" in left


def test_a_key_may_be_left_out_by_name(tmp_path):
    (asked,) = (each for each in imported(tmp_path, "phi-4", new=3).ignored if each.key == "new")
    assert (asked.value, asked.reason) == ("3", "it was asked for (--ignore)")


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("qwen3-coder-480b", {"decoder_sparse_step": 0}, "decoder_sparse_step: 0 is below 1"),
        ("qwen3-coder-480b", {"mlp_only_layers": ["3"]}, "mlp_only_layers: '3' is no layer of 62"),
        ("deepseek-v2", {"moe_layer_freq": 0}, "moe_layer_freq: 0 is below 1"),
        ("command-r7b", {"sliding_window_pattern": 0}, "sliding_window_pattern: 0 is below 1"),
        ("granite-4.0-h-tiny", {"mamba_n_heads": 0}, "mamba_n_heads: 0 is below 1"),
        ("granite-4.0-h-tiny", {"mamba_d_head": 32}, "48 of mamba_d_head 32 are not mamba_expand times"),
        ("llama4-scout", {"text_config": []}, r"text_config: \[\] is no dict"),
    ],
)
def test_what_makes_no_layers_is_refused_by_key(tmp_path, name, changed, said):
    with pytest.raises(ConfigError, match=said):
        imported(tmp_path, name, **changed)


def test_numbers_that_are_not_finite_may_stand_where_nobody_reads_them(tmp_path):
    text = json.dumps(PUBLISHED["smollm2-1.7b"][0])[:-1] + ', "rope_scaling": [0.0, Infinity]}'
    (tmp_path / "config.json").write_text(text)
    assert import_hugging_face(tmp_path).model.parameters == PUBLISHED["smollm2-1.7b"][1]

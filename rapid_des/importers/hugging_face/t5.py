"""T5 and its kin: an encoder of texts, and a decoder whose layers attend to it (Raffel et al. 2020)."""

from __future__ import annotations

from rapid_des.importers.keys import Keys, Tree

ENCODER_DECODERS = frozenset(("mt5", "t5"))
"""The architectures of an encoder with a decoder."""
_LONGEST = 2**20
_ACTIVATIONS = {"relu": "relu", "gated-gelu": "geglu", "gated-silu": "swiglu"}


def t5(keys: Keys) -> Tree:
    """Read T5, its version 1.1, mT5 and FLAN-T5: RMS norms, no biases, learned biases of distances."""
    if any(str(name).endswith("EncoderModel") for name in keys.get("architectures", list, [])):
        raise keys.error("the encoder alone is not simulated", "architectures")
    keys.ignore("feed_forward_proj says it", "dense_act_fn", "is_gated_act")
    keys.ignore("it says which distances share a bias",
                "relative_attention_max_distance")  # fmt: skip
    keys.ignore("positions are relative, which nothing bounds", "n_positions")
    keys.ignore("dropout is the job's (training.dropout)", "dropout_rate")
    keys.ignore("it is how the library runs the model, which a job says", "output_past")
    keys.ignore("it is of a head that sorts texts", "classifier_dropout")
    keys.notes.append(
        "a job states `source_length`, which the encoder reads; biases of distances cost a look-up a pass"
    )
    count = keys.count("num_layers", 6, least=1)
    attention = {"heads": keys.count("num_heads", 8), "head_dim": keys.count("d_kv", 64)}
    feed_forward = {
        "activation": keys.choice("feed_forward_proj", _ACTIVATIONS, "relu"),
        "hidden": keys.count("d_ff", 2048),
    }
    stack: Tree = {
        "hidden": keys.count("d_model", 512),
        "attention": attention,
        "feed_forward": feed_forward,
        "norm": "rms_norm",
        "position": "relative",
        "position_buckets": keys.count("relative_attention_num_buckets", 32, least=1),
        "vocabulary": keys.count("vocab_size", 32128),
        "max_positions": _LONGEST,
    }
    encoder = stack | {"layers": count, "tied_embeddings": True}
    encoder["attention"] = attention | {"kind": "attention", "causal": False}
    encoder["feed_forward"] = feed_forward | {"kind": "dense"}
    return stack | {
        "layers": keys.count("num_decoder_layers", count, least=1),
        "tied_embeddings": keys.flag("tie_word_embeddings", default=True),
        "encoder": {"model": encoder},
    }

"""Arguments of Megatron-LM that change neither shapes nor the step that is simulated, by the reason.

Names are those of `megatron/training/arguments.py`, Megatron Core 0.9 to 0.15.
"""

from __future__ import annotations

from collections.abc import Mapping

OF_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "it is a rate, decay or scale of the optimizer": frozenset((
        "adam-beta1", "adam-beta2", "adam-eps", "decoupled-lr", "decoupled-min-lr", "end-weight-decay",
        "hysteresis", "initial-loss-scale", "loss-scale", "loss-scale-window", "lr", "lr-decay-iters",
        "lr-decay-samples", "lr-decay-style", "lr-warmup-fraction", "lr-warmup-init", "lr-warmup-iters",
        "lr-warmup-samples", "lr-wsd-decay-iters", "lr-wsd-decay-samples", "lr-wsd-decay-style",
        "min-loss-scale", "min-lr", "mtp-loss-scaling-factor", "override-opt-param-scheduler",
        "sgd-momentum", "start-weight-decay", "use-checkpoint-opt-param-scheduler", "weight-decay",
        "weight-decay-incr-style",
    )),
    "it is of files that keep a state": frozenset((
        "adlr-autoresume", "adlr-autoresume-interval", "async-save", "auto-detect-ckpt-format",
        "ckpt-assume-constant-structure", "ckpt-convert-format", "ckpt-convert-save",
        "ckpt-convert-update-legacy-dist-opt-format", "ckpt-format", "ckpt-fully-parallel-load",
        "ckpt-fully-parallel-save", "ckpt-step", "disable-msc", "dist-ckpt-format",
        "dist-ckpt-optim-fully-reshardable", "dist-ckpt-strictness",
        "distrib-optim-fully-reshardable-mem-efficient", "dump-param-to-param-group-map",
        "exit-on-missing-checkpoint", "finetune", "load", "load-main-params-from-ckpt",
        "load-model-opt-format", "no-ckpt-fully-parallel-save", "no-load-optim", "no-load-rng",
        "no-save-optim", "no-save-rng", "no-strict-fsdp-dtensor-load", "non-persistent-ckpt-type",
        "non-persistent-global-ckpt-dir", "non-persistent-local-ckpt-algo", "non-persistent-local-ckpt-dir",
        "non-persistent-save-interval", "object-storage-cache-path", "persistent-save-interval",
        "pretrained-checkpoint", "replication", "replication-factor", "replication-jump", "s3-cache-path",
        "save", "save-interval", "save-retain-interval", "use-checkpoint-args", "use-dist-ckpt",
        "use-mp-args-from-checkpoint-args", "use-persistent-ckpt-worker",
    )),
    "it is of data and tokenizers": frozenset((
        "allow-ambiguous-pad-tokens", "data-args-path", "data-cache-path", "data-path", "dataloader-type",
        "eod-mask-loss", "fim-data", "fim-eod-token", "fim-fragment-rate", "fim-middle-token",
        "fim-no-prefix", "fim-pad-token", "fim-prefix-token", "fim-rate", "fim-split-sample",
        "fim-spm-rate", "fim-suffix-token", "legacy-tokenizer", "merge-file", "mid-level-dataset-surplus",
        "mock-data", "multiple-validation-sets", "no-create-attention-mask-in-dataloader",
        "no-mmap-bin-files", "no-use-tokenizer-model-from-checkpoint-args", "num-dataset-builder-threads",
        "num-workers", "per-split-data-args-path", "renormalize-blend-weights", "reset-attention-mask",
        "reset-position-ids", "split", "test-data-path", "tiktoken-num-special-tokens", "tiktoken-pattern",
        "tiktoken-special-tokens", "tokenizer-hf-include-special-tokens", "tokenizer-hf-use-fast",
        "tokenizer-metadata", "tokenizer-model", "tokenizer-sentencepiece-legacy",
        "tokenizer-special-tokens", "train-data-path", "trust-remote-code", "valid-data-path", "vocab-file",
    )),
    "it is of logs, checks, profiles and restarts": frozenset((
        "app-tag-run-name", "app-tag-run-version", "calc-ft-timeouts", "check-for-large-grads",
        "check-for-spiky-loss", "check-weight-hash-across-dp-replicas-interval", "config-logger-dir",
        "disable-straggler-on-startup", "empty-unused-memory-level", "enable-experimental",
        "enable-ft-package", "error-injection-rate", "error-injection-type", "inprocess-active-world-size",
        "inprocess-barrier-timeout", "inprocess-completion-timeout", "inprocess-empty-cuda-cache",
        "inprocess-granularity", "inprocess-hard-timeout", "inprocess-heartbeat-interval",
        "inprocess-heartbeat-timeout", "inprocess-last-call-wait", "inprocess-max-iterations",
        "inprocess-monitor-process-interval", "inprocess-monitor-thread-interval",
        "inprocess-progress-watchdog-interval", "inprocess-restart", "inprocess-soft-timeout",
        "inprocess-termination-grace-time", "log-energy", "log-interval", "log-max-attention-logit",
        "log-memory-to-tensorboard", "log-num-zeros-in-grad", "log-params-norm", "log-progress",
        "log-straggler", "log-throughput", "log-timers-to-tensorboard", "log-validation-ppl-to-tensorboard",
        "log-world-size-to-tensorboard", "logging-level", "memory-snapshot-path", "moe-per-layer-logging",
        "no-barrier-with-level-1-timing", "no-check-for-nan-in-loss-and-grad",
        "no-log-loss-scale-to-tensorboard", "no-one-logger", "one-logger-async", "one-logger-project",
        "one-logger-run-name", "profile", "profile-ranks", "profile-step-end", "profile-step-start",
        "record-memory-history", "rerun-mode", "run-workload-inspector-server", "straggler-ctrlr-port",
        "straggler-minmax-count", "tensorboard-dir", "tensorboard-log-interval", "tensorboard-queue-size",
        "test-mode", "timing-log-level", "timing-log-option", "use-pytorch-profiler", "wandb-entity",
        "wandb-exp-name", "wandb-project", "wandb-save-dir",
    )),
    "it says how long a run goes on": frozenset((
        "eval-interval", "eval-iters", "exit-duration-in-mins", "exit-interval", "exit-signal-handler",
        "full-validation", "iterations-to-skip", "manual-gc", "manual-gc-interval", "no-manual-gc-eval",
        "skip-train", "train-iters", "train-samples", "train-sync-interval",
    )),
    "the step is one behind the ramp": frozenset((
        "rampup-batch-size",
    )),
    "it seeds or initialises": frozenset((
        "data-parallel-random-init", "embedding-init-method-std", "inference-rng-tracker",
        "init-method-std", "init-method-xavier-uniform", "init-model-with-meta-device", "no-initialization",
        "seed", "te-rng-tracker", "use-cpu-initialization",
    )),
    "it is of inference": frozenset((
        "cache-mla-latents", "decode-only-cuda-graphs", "flash-decode",
        "inference-batch-times-seqlen-threshold", "inference-coordinator-port",
        "inference-dynamic-batching", "inference-dynamic-batching-block-size",
        "inference-dynamic-batching-buffer-guaranteed-fraction",
        "inference-dynamic-batching-buffer-overflow-factor", "inference-dynamic-batching-buffer-size-gb",
        "inference-dynamic-batching-chunk-size", "inference-dynamic-batching-cuda-graph-max-tokens",
        "inference-dynamic-batching-cuda-graph-mixed-prefill-count",
        "inference-dynamic-batching-max-requests", "inference-dynamic-batching-max-requests-override",
        "inference-dynamic-batching-max-tokens", "inference-dynamic-batching-max-tokens-override",
        "inference-dynamic-batching-num-cuda-graphs",
        "inference-dynamic-batching-track-paused-request-events",
        "inference-dynamic-batching-unified-memory-level", "inference-fuse-tp-communication",
        "inference-logging-step-interval", "inference-max-batch-size", "inference-max-requests",
        "inference-max-seq-length", "inference-wandb-logging", "max-tokens-to-oom",
        "mlp-chunks-for-prefill", "nccl-all-reduce-for-prefill", "output-bert-embeddings",
        "use-legacy-static-engine",
    )),
    "it scales or bounds numbers inside kernels": frozenset((
        "activation-func-clamp-value", "apply-layernorm-1p", "apply-query-key-layer-scaling",
        "attention-softmax-in-fp32", "calculate-per-token-loss", "fp8-amax-compute-algo",
        "fp8-amax-history-len", "fp8-interval", "fp8-margin", "glu-linear-offset",
        "moe-router-score-function", "moe-router-topk-scaling-factor", "mscale", "mscale-all-dim",
        "norm-epsilon",
    )),
    "it changes by which angles positions rotate, no shape": frozenset((
        "mrope-section", "rope-scaling-factor", "rope-type", "rotary-base", "rotary-interleaved",
        "rotary-scaling-factor", "rotary-seq-len-interpolation-factor", "use-rope-scaling",
    )),
    "it says which experts tokens choose, or weighs terms of the loss": frozenset((
        "moe-aux-loss-coeff", "moe-input-jitter-eps", "moe-router-bias-update-rate", "moe-router-dtype",
        "moe-router-force-load-balancing", "moe-router-load-balancing-type", "moe-router-num-groups",
        "moe-router-pre-softmax", "moe-token-drop-policy", "moe-z-loss-coeff",
    )),
    "kernels are Transformer Engine's, joined as `fusion` of the job says": frozenset((
        "moe-router-fusion", "no-bias-dropout-fusion", "no-bias-gelu-fusion", "no-bias-swiglu-fusion",
        "no-masked-softmax-fusion", "no-persist-layer-norm", "no-rope-fusion", "transformer-impl",
        "use-flash-attn", "use-fused-weighted-squared-relu", "use-legacy-models", "use-mcore-models",
        "use-te-activation-func",
    )),
    "kernels follow one another as in a graph unless `host` of the job says what launches take": frozenset((
        "cuda-graph-impl", "cuda-graph-scope", "cuda-graph-warmup-steps", "enable-cuda-graph",
        "external-cuda-graph",
    )),
    "it is how processes and streams are set up": frozenset((
        "disable-gloo-process-groups", "distributed-backend", "distributed-timeout-minutes",
        "distributed-timeout-seconds-after-init", "fake-process-group", "high-priority-stream-groups",
        "initialize-socket-comms", "lazy-mpu-init", "local-rank", "nccl-communicator-config-path",
        "tp-comm-bootstrap-backend",
    )),
    "gradients are divided while they are reduced": frozenset((
        "ddp-average-in-collective", "ddp-pad-buckets-for-high-nccl-busbw", "no-gradient-reduce-div-fusion",
    )),
}  # fmt: skip
"""The ignored arguments by the reason."""

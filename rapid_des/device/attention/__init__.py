"""Attention kernels: of many queries (`flash`), and of few over a long cache (`decode`).

MLA, absorbed, is decode (or flash) over one latent KV head of 576 columns whose first 512 are the values
(`shared_latent`); not absorbed it is flash with head_dim 192 and value_dim 128. Both have constants of their
own (`mla_decode`, `mla_prefill`).
"""

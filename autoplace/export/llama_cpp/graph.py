"""llama.cpp's graph of one micro-batch, as far as it takes memory: sizes, order, devices.

Source: llama.cpp b9993, src/llama-graph.cpp (`build_attn`, `build_moe_ffn`) and src/models/*.cpp,
checked node by node against `GGML_SCHED_DEBUG=2` of deepseek2 with a whole kv_b, llama, qwen3moe,
qwen2moe, gpt-oss, glm4moe and minimax-m2; the graph of split kv_b (absorbed MLA) was only read. The
worst case that it reserves for: a full
micro-batch, a full cache, logits of every token.
"""

from dataclasses import dataclass
from functools import cached_property

from autoplace.architectures.geometry import Geometry, Gqa, Mla
from autoplace.export.llama_cpp.arena import Tensor

F32, F16 = 4, 2
HOST = "cpu"


@dataclass(frozen=True)
class LayerAt:
    """One layer of the graph: its kind and where its parts run."""

    device: str
    is_moe: bool
    experts: str = HOST
    """Device that computes the routed experts."""
    weights: tuple[int, ...] = ()
    """Bytes of up, gate and down where they lie on the host and a GPU computes: it copies them."""
    shared: str = HOST
    """Device of the dense MLP, or of the shared expert."""
    attention: str = HOST
    sliding: bool = False
    cache: str = HOST
    """Device of its keys and values."""
    tail: str = HOST
    """Device of what follows its last linear: a GPU takes it over from the host."""


@dataclass(frozen=True)
class Shape:
    """What of a run decides sizes."""

    geometry: Geometry
    tokens: int
    """Of the micro-batch."""
    cells: int
    """Of the cache."""
    window_cells: int
    """Of the cache of layers with a sliding window."""
    flash: bool
    absorbed: bool
    key_rotation: int = 0
    """Width of the matrix that turns queries and keys for a quantised cache; 0: they are not."""
    value_rotation: int = 0


class GraphBuilder:
    """Builds leaves and nodes for a list of layers."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.geometry = shape, shape.geometry
        self.tokens = shape.tokens
        self.leaves: list[Tensor] = []
        self.nodes: list[Tensor] = []

    # Building blocks.

    def leaf(self, n_bytes: int) -> Tensor:
        self.leaves.append(Tensor(n_bytes, HOST))
        return self.leaves[-1]

    def node(
        self, width: float, device: str, *inputs: Tensor, over: tuple[Tensor, ...] = ()
    ) -> Tensor:
        """`width`: values a token, in float32. `over`: inputs whose place it may take."""
        n_bytes = int(F32 * width * self.tokens)
        self.nodes.append(Tensor(n_bytes, device, inputs, over))
        return self.nodes[-1]

    def in_place(self, device: str, first: Tensor, *others: Tensor) -> Tensor:
        """An operation on each value, of the shape of its first input."""
        width = first.n_bytes / F32 / self.tokens
        return self.node(width, device, first, *others, over=(first, *others))

    def normed(self, device: str, hidden: Tensor) -> Tensor:
        return self.in_place(device, self.in_place(device, hidden))

    def stored(self, device: str, *inputs: Tensor) -> None:
        self.nodes.append(Tensor(0, device, inputs))

    # The graph.

    def build(self, layers: list[LayerAt], output: str) -> None:
        """All of it: the embedding on the host, the layers, the output."""
        hidden_width = self.geometry.hidden
        ids = self.leaf(F32 * self.tokens)
        self.leaf(F32 * self.tokens * hidden_width)  # embeddings instead of tokens: never freed
        current = self.node(hidden_width, HOST, ids)
        for index, layer in enumerate(layers):
            current = self._layer(layer, current, is_last=index == len(layers) - 1)
        normed = self.normed(output, current)
        normed.is_kept = True
        self.node(self.geometry.vocab, output, normed).is_kept = True

    def _layer(self, layer: LayerAt, residual: Tensor, *, is_last: bool) -> Tensor:
        attention = self.geometry.attention
        normed = self.normed(layer.device, residual)
        if isinstance(attention, Mla):
            out = self._mla(layer, attention, normed)
        else:
            out = self._gqa(layer, attention, normed)
        if is_last:
            ids = self.out_ids
            out = self.node(self.geometry.hidden, layer.device, out, ids)
            residual = self.node(self.geometry.hidden, layer.device, residual, ids)
        stream = self.in_place(layer.device, out, residual)
        normed = self.normed(layer.device, stream)
        ffn = self._moe(layer, normed) if layer.is_moe else self._dense(layer, normed)
        return self.in_place(layer.tail, ffn, stream)

    # Inputs that layers share.

    @cached_property
    def positions(self) -> Tensor:
        return self.leaf(F32 * self.tokens)

    @cached_property
    def out_ids(self) -> Tensor:
        return self.leaf(F32 * self.tokens)

    @cached_property
    def _key_rotation(self) -> Tensor:
        return self.leaf(F32 * self.shape.key_rotation**2)

    @cached_property
    def _value_rotation(self) -> Tensor:
        return self.leaf(F32 * self.shape.value_rotation**2)

    @cached_property
    def _full_mask(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._attention_inputs(self.shape.cells)

    @cached_property
    def _window_mask(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._attention_inputs(self.shape.window_cells)

    def _attention_inputs(self, cells: int) -> tuple[Tensor, Tensor, Tensor]:
        """Places of keys and of values, and the mask."""
        attention = self.geometry.attention
        keys = self.leaf(8 * self.tokens)
        if self.shape.flash or self.shape.absorbed:
            values = self.leaf(8 * self.tokens)
        elif isinstance(attention, Mla):
            values = self.leaf(8 * self.tokens * self.geometry.num_heads * attention.v_dim)
        else:
            values = self.leaf(8 * self.tokens * attention.num_kv_heads * attention.head_dim)
        mask = self.leaf((F16 if self.shape.flash else F32) * self.tokens * cells)
        return keys, values, mask

    # Attention.

    def _gqa(self, layer: LayerAt, attention: Gqa, normed: Tensor) -> Tensor:
        at = layer.attention
        heads = self.geometry.num_heads * attention.head_dim
        kv = attention.num_kv_heads * attention.head_dim
        query = self._rotated(at, heads, attention, normed)
        value = self.node(kv, at, normed)
        if attention.qkv_bias:
            value = self.in_place(at, value)
        value = self._turned_value(at, value)
        key = self._rotated(at, kv, attention, normed)
        return self._attend(layer, query, key, value, heads, sliding=layer.sliding)

    def _rotated(self, at: str, width: int, attention: Gqa, normed: Tensor) -> Tensor:
        """A query or a key, with its bias and norm. What is done to heads is done to a view of
        the linear's result, whose place is never taken."""
        found = self.node(width, at, normed)
        if attention.qkv_bias:
            found = self.in_place(at, found)
        if attention.qk_norm:
            found = self.in_place(at, self.node(width, at, found))
            return self._turned(at, self.in_place(at, found, self.positions))
        if attention.wide_qk_norm:
            found = self.normed(at, found)
        return self._turned(at, self.node(width, at, found, self.positions))

    def _turned(self, at: str, found: Tensor) -> Tensor:
        """A query or a key for a quantised cache."""
        if not self.shape.key_rotation:
            return found
        return self.node(self._width(found), at, found, self._key_rotation)

    def _turned_value(self, at: str, found: Tensor) -> Tensor:
        if not self.shape.value_rotation:
            return found
        return self.node(self._width(found), at, found, self._value_rotation)

    def _width(self, tensor: Tensor) -> float:
        return tensor.n_bytes / F32 / self.tokens

    def _attend(
        self,
        layer: LayerAt,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out_width: int,
        *,
        sliding: bool = False,
    ) -> Tensor:
        """Keys and values into the cache, scores, and the output's linear."""
        keys_at, values_at, mask = self._window_mask if sliding else self._full_mask
        cells = self.shape.window_cells if sliding else self.shape.cells
        self.stored(layer.cache, key, keys_at)
        self.stored(layer.cache, value, values_at)
        if self.shape.flash:
            out = self.node(out_width, layer.cache, query, mask)
        else:
            scores = self.node(cells * self.geometry.num_heads, layer.cache, query)
            scores = self.in_place(layer.cache, scores, mask)
            out = self.node(out_width, layer.cache, self.node(out_width, layer.cache, scores))
        return self._output(layer, self._turned_value(layer.device, out))

    def _output(self, layer: LayerAt, out: Tensor) -> Tensor:
        found = self.node(self.geometry.hidden, layer.attention, out)
        attention = self.geometry.attention
        if isinstance(attention, Gqa) and attention.output_bias:
            found = self.in_place(layer.attention, found)
        return found

    def _mla(self, layer: LayerAt, mla: Mla, normed: Tensor) -> Tensor:
        heads, at = self.geometry.num_heads, layer.attention
        query_in = normed
        if mla.q_lora_rank is not None:
            query_in = self.normed(at, self.node(mla.q_lora_rank, at, normed))
        query = self.node(heads * (mla.qk_nope_dim + mla.qk_rope_dim), at, query_in)
        if self.shape.absorbed:
            return self._mla_absorbed(layer, mla, normed, query)
        rotated = self.node(heads * mla.qk_rope_dim, at, query, self.positions)
        query = self.node(heads * (mla.qk_nope_dim + mla.qk_rope_dim), at, query, rotated)
        query = self._turned(at, query)
        latent = self.node(mla.kv_lora_rank + mla.qk_rope_dim, at, normed)
        compressed = self.in_place(at, self.node(mla.kv_lora_rank, at, latent))
        expanded = self.node(heads * (mla.qk_nope_dim + mla.v_dim), at, compressed)
        value = self._turned_value(at, self.node(heads * mla.v_dim, at, expanded))
        key_rope = self.node(mla.qk_rope_dim, at, latent, self.positions)
        repeated = self.node(heads * mla.qk_rope_dim, at, key_rope)
        width = heads * (mla.qk_nope_dim + mla.qk_rope_dim)
        key = self._turned(at, self.node(width, at, expanded, repeated))
        return self._attend(layer, query, key, value, heads * mla.v_dim)

    def _mla_absorbed(self, layer: LayerAt, mla: Mla, normed: Tensor, query: Tensor) -> Tensor:
        """Queries in the latent space; values are a view of the keys."""
        heads, at = self.geometry.num_heads, layer.attention
        wide = mla.kv_lora_rank + mla.qk_rope_dim
        rotated = self.node(heads * mla.qk_rope_dim, at, query, self.positions)
        absorbed = self.node(heads * mla.kv_lora_rank, at, query)
        query = self._turned(at, self.node(heads * wide, at, absorbed, rotated))
        latent = self.node(wide, at, normed)
        compressed = self.in_place(at, self.node(mla.kv_lora_rank, at, latent))
        key_rope = self.node(mla.qk_rope_dim, at, latent, self.positions)
        key = self._turned(at, self.node(wide, at, compressed, key_rope))
        keys_at, _, mask = self._full_mask
        self.stored(layer.cache, key, keys_at)
        if self.shape.flash:
            out = self.node(heads * mla.kv_lora_rank, layer.cache, query, mask)
        else:
            scores = self.node(self.shape.cells * heads, layer.cache, query)
            scores = self.in_place(layer.cache, scores, mask)
            out = self.node(heads * mla.kv_lora_rank, layer.cache, scores)
        value = self.node(heads * mla.v_dim, layer.device, out)
        value = self.node(heads * mla.v_dim, layer.device, value)
        return self._output(layer, value)

    # Feed forward.

    def _dense(self, layer: LayerAt, normed: Tensor) -> Tensor:
        return self._swiglu(layer.shared, self.geometry.dense_ffn, normed)

    def _swiglu(self, at: str, width: int, normed: Tensor) -> Tensor:
        gate = self.node(width, at, normed)
        up = self.node(width, at, normed)
        return self.node(self.geometry.hidden, at, self.node(width, at, gate, up))

    def _moe(self, layer: LayerAt, normed: Tensor) -> Tensor:
        moe, at = self.geometry.moe, layer.device
        assert moe is not None
        out = self._routed(layer, normed)
        if not moe.shared_ffn:
            return out
        shared = self._swiglu(layer.shared, moe.shared_ffn, normed)
        if moe.shared_expert_gate:
            gate = self.node(1, at, normed)
            shared = self.in_place(at, shared, self.in_place(at, self.node(1, at, gate), gate))
        return self.in_place(layer.tail, out, shared)

    def _routed(self, layer: LayerAt, normed: Tensor) -> Tensor:
        """Router, experts, and the sum of what they say."""
        moe, at, there = self.geometry.moe, layer.device, layer.experts
        assert moe is not None
        probs = self.in_place(at, self.node(moe.num_experts, at, normed))
        chosen = probs
        if moe.expert_bias:
            chosen = self.node(moe.num_experts, at, probs)
        experts = self.node(moe.num_experts, at, chosen)
        weights = self.node(moe.top_k, at, probs, experts)
        if moe.normalise_top_k:
            weights = self.node(moe.top_k, at, weights, self.node(1, at, weights))
        if moe.linear_biases:
            weights = self.node(moe.top_k, at, weights)
        if moe.routed_scaling not in (0.0, 1.0):
            weights = self.node(moe.top_k, at, weights)
        inner, used = moe.expert_ffn * moe.top_k, moe.top_k
        gate_up = [
            self._expert_linear(there, inner, weight, normed, experts)
            for weight in self._weights(layer)[:2]
        ]
        inside = self.node(inner, there, *gate_up)
        width = self.geometry.hidden * used
        down = self._expert_linear(there, width, self._weights(layer)[2], inside, experts)
        after = self._after_experts(layer)
        return self._sum(after, self.in_place(after, down, weights), used)

    def _after_experts(self, layer: LayerAt) -> str:
        """What has no weights goes with the GPU before or behind it, between two linears on the
        host it stays there."""
        assert self.geometry.moe is not None
        if not self.geometry.moe.shared_ffn:
            return layer.tail
        return HOST if layer.experts == layer.shared == HOST else layer.device

    def _expert_linear(self, at: str, width: int, weight: Tensor | None, *inputs: Tensor) -> Tensor:
        found = self.node(width, at, *([weight] if weight else []), *inputs)
        moe = self.geometry.moe
        assert moe is not None
        return self.in_place(at, found, inputs[-1]) if moe.linear_biases else found

    def _weights(self, layer: LayerAt) -> list[Tensor | None]:
        if not layer.weights:
            return [None, None, None]
        return [Tensor(n_bytes, HOST, is_weight=True) for n_bytes in layer.weights]

    def _sum(self, at: str, weighted: Tensor, used: int) -> Tensor:
        """The experts' results added one after the other, each a part of one tensor."""
        width = self.geometry.hidden
        if used == 1:
            return self.node(width, at, weighted)
        total = self.node(width, at, weighted, weighted)
        for _ in range(used - 2):
            total = self.node(width, at, total, weighted, over=(total,))
        return total

//! The operators of the kernel library as functions on a device's f32 tensors: what the formulas of a network are written in.
//!
//! Each function is one call of an operator by its published name; nothing is computed here but the roundings of `rounding` that no operator has. What only moves rows (joining,
//! cutting, choosing rows of a table) goes through the host. Not here: which weights, which layer (`layer`). Flow: a layer
//! calls a function, that plans the operator, the stream runs the plan.

mod rounding;

pub use rounding::{Numerics, Rounding};

use crate::error::Result;
use crate::generate::{Sampling, no_token};
use kiln_codegen::abi::{Launcher, TensorView};
use kiln_codegen::host_tensor::HostTensor;
use kiln_codegen::ir::DType;
use kiln_codegen::ir::build::row_major;
use kiln_codegen::spec::{DefaultConfigs, OpError, OpSpec, ParamValue, Problem, TensorSpec};
use kiln_runtime::{Device, Stream};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tensors of a problem by name.
pub type Tensors = BTreeMap<String, TensorView>;
type Named<'a> = (&'a str, &'a TensorView);
type Parameter<'a> = (&'a str, ParamValue);

/// A device with the library's operators.
#[derive(Debug)]
pub struct Operators {
    device: Device,
    stream: Stream,
    ops: BTreeMap<&'static str, Arc<dyn OpSpec>>,
    numerics: Numerics,
}

fn int(x: usize) -> ParamValue {
    ParamValue::Int(x as i64)
}

/// A contiguous tensor in another shape of as many elements.
pub fn reshaped(x: &TensorView, shape: &[usize]) -> TensorView {
    TensorView { shape: shape.to_vec(), strides: row_major(shape), ..x.clone() }
}

/// Rows `first..first + count` of a tensor's first axis.
pub fn rows_of(x: &TensorView, first: usize, count: usize) -> TensorView {
    let mut view = x.clone();
    view.shape[0] = count;
    view.offset_bytes += x.dtype.bytes(first * x.strides[0]);
    view
}

/// Columns `first..first + count` of a tensor's last axis.
pub fn columns_of(x: &TensorView, first: usize, count: usize) -> TensorView {
    let mut view = x.clone();
    if let Some(last) = view.shape.last_mut() {
        *last = count;
    }
    view.offset_bytes += x.dtype.bytes(first);
    view
}

/// Bytes of f32 numbers.
fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Integers of an i32 or i64 tensor.
pub fn integers(t: &HostTensor) -> Vec<i64> {
    // Ids and counts are far below 2^53.
    t.to_f64().into_iter().map(|x| x as i64).collect()
}

impl Operators {
    /// The library on a device.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Device) -> Result<Self> {
        Self::with(device, Numerics::Exact)
    }

    /// As [`Operators::new`], rounding on the way.
    ///
    /// # Errors
    /// The driver's.
    pub fn with(device: &Device, numerics: Numerics) -> Result<Self> {
        let ops = kiln_kernels::registry().into_iter().map(|op| (op.info().name, op)).collect();
        Ok(Operators { device: device.clone(), stream: device.stream()?, ops, numerics })
    }

    /// Name of the device.
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// Runs an operator on tensors by name. Outputs that are not given are made; all tensors come back.
    fn call(&self, op: &str, inputs: &[Named<'_>], outputs: &[Named<'_>], params: &[Parameter<'_>]) -> Result<Tensors> {
        let unknown = || OpError { op: op.into(), message: "is not in this build's kernel library".into() };
        let op = self.ops.get(op).ok_or_else(unknown)?;
        let mut problem = Problem::default();
        problem.params.extend(params.iter().map(|(n, x)| (n.to_string(), x.clone())));
        problem.tensors.extend(inputs.iter().map(|(n, t)| (n.to_string(), (*t).clone())));
        let spec = |n: &str, t: &TensorView| TensorSpec { name: n.into(), dtype: t.dtype, shape: t.shape.clone() };
        let specs = inputs.iter().map(|(n, t)| (n.to_string(), spec(n, t))).collect();
        for out in op.outputs(&specs, &problem.params)? {
            let given = outputs.iter().find(|(n, _)| *n == out.name);
            let tensor = match given {
                Some((_, view)) => (*view).clone(),
                None => self.device.zeros(out.dtype, &out.shape)?,
            };
            problem.tensors.insert(out.name, tensor);
        }
        self.stream.run(&op.plan(&problem, &DefaultConfigs)?)?;
        Ok(problem.tensors)
    }

    /// One output of [`Operators::call`].
    fn one(&self, op: &str, inputs: &[Named<'_>], params: &[Parameter<'_>], output: &str) -> Result<TensorView> {
        let mut all = self.call(op, inputs, &[], params)?;
        let lost = || OpError { op: op.into(), message: format!("has no output `{output}`") };
        Ok(all.remove(output).ok_or_else(lost)?)
    }

    // --- memory ---

    /// Numbers to the device.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn upload(&self, shape: &[usize], values: &[f32]) -> Result<TensorView> {
        Ok(self.device.upload(&HostTensor { dtype: DType::F32, shape: shape.to_vec(), data: bytes(values) })?)
    }

    /// Integers to the device as i32.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn upload_i32(&self, shape: &[usize], values: &[i32]) -> Result<TensorView> {
        let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(self.device.upload(&HostTensor { dtype: DType::I32, shape: shape.to_vec(), data })?)
    }

    /// Integers to the device as i64.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn upload_i64(&self, shape: &[usize], values: &[i64]) -> Result<TensorView> {
        let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Ok(self.device.upload(&HostTensor { dtype: DType::I64, shape: shape.to_vec(), data })?)
    }

    /// Numbers back to the host, after everything before has run.
    ///
    /// # Errors
    /// A fault of a kernel that ran.
    pub fn download(&self, x: &TensorView) -> Result<Vec<f32>> {
        self.stream.synchronize()?;
        let host = self.device.download(x)?;
        Ok(host.data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
    }

    /// Integers back to the host.
    ///
    /// # Errors
    /// A fault of a kernel that ran.
    pub fn download_integers(&self, x: &TensorView) -> Result<Vec<i64>> {
        self.stream.synchronize()?;
        Ok(integers(&self.device.download(x)?))
    }

    /// An f32 tensor that a later call fills.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn empty(&self, shape: &[usize]) -> Result<TensorView> {
        Ok(self.device.zeros(DType::F32, shape)?)
    }

    // --- formulas ---

    /// `x · wᵀ`: the last axis of `x` against the rows of `w`.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn linear(&self, x: &TensorView, w: &TensorView) -> Result<TensorView> {
        let out = self.empty(&[&x.shape[..x.shape.len() - 1], &w.shape[..1]].concat())?;
        self.linear_into(x, w, &out)?;
        Ok(out)
    }

    /// As [`Operators::linear`], into rows of a larger tensor.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn linear_into(&self, x: &TensorView, w: &TensorView, out: &TensorView) -> Result<()> {
        let flat = |t: &TensorView| {
            let columns = t.shape[t.shape.len() - 1];
            reshaped(t, &[t.num_elements() / columns.max(1), columns])
        };
        let a = flat(x);
        let (a, b) = (reshaped(&a, &[&[1], &a.shape[..]].concat()), reshaped(w, &[&[1], &w.shape[..]].concat()));
        self.call("einsum", &[("a", &a), ("b", &b)], &[("d", &flat(out))], &[])?;
        Ok(())
    }

    /// `z[t, h] = w[h] · x[t, h]` for `x [t, h, r]`, `w [h, d, r]`, into `out [t, h, d]`.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn by_head_into(&self, x: &TensorView, w: &TensorView, out: &TensorView) -> Result<()> {
        let params = [("expr", ParamValue::Text("bhr,hdr->bhd".into())), ("out_dtype", ParamValue::Text("f32".into()))];
        self.call("einsum", &[("x", x), ("y", w)], &[("z", out)], &params)?;
        Ok(())
    }

    /// `z[t, h] = w[h]ᵀ · x[t, h]` for `x [t, h, d]`, `w [h, d, r]`, into `out [t, h, r]`.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn by_head_transposed_into(&self, x: &TensorView, w: &TensorView, out: &TensorView) -> Result<()> {
        let params = [("expr", ParamValue::Text("bhd,hdr->bhr".into())), ("out_dtype", ParamValue::Text("f32".into()))];
        self.call("einsum", &[("x", x), ("y", w)], &[("z", out)], &params)?;
        Ok(())
    }

    /// RMS norm over the last axis.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn rmsnorm(&self, x: &TensorView, weight: Option<&TensorView>, eps: f64) -> Result<TensorView> {
        let mut inputs = vec![("x", x)];
        inputs.extend(weight.map(|w| ("weight", w)));
        self.one("rmsnorm", &inputs, &[("eps", ParamValue::Float(eps))], "y")
    }

    /// Sum of two tensors of one shape.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn add(&self, x: &TensorView, y: &TensorView) -> Result<TensorView> {
        let flat = |t: &TensorView| reshaped(t, &[t.num_elements()]);
        let z = self.one("vector_add", &[("x", &flat(x)), ("y", &flat(y))], &[], "z")?;
        Ok(reshaped(&z, &x.shape))
    }

    /// Turns neighbouring pairs in the last channels of `x [t, heads, d]` by the angles of the tables, or back.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn rope(&self, x: &TensorView, table: &RopeTable, pairs: Pairs, inverse: bool) -> Result<TensorView> {
        let params =
            [("interleaved", ParamValue::Bool(pairs == Pairs::Neighbours)), ("inverse", ParamValue::Bool(inverse))];
        self.one("rope_partial", &[("x", x), ("cos", &table.cos), ("sin", &table.sin)], &params, "y")
    }

    /// Attention of `q [t, h, d_qk]` to the rows of `keys [n, d_qk]` each query's list names; the first `values` columns of a
    /// key are its value.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn attend(&self, q: &TensorView, keys: &TensorView, lists: &Lists, a: &Attend<'_>) -> Result<TensorView> {
        let keys = reshaped(keys, &[keys.shape[0], 1, keys.shape[1]]);
        let indices = reshaped(&lists.indices, &[lists.indices.shape[0], 1, lists.indices.shape[1]]);
        let mut inputs = vec![("q", q), ("kv", &keys), ("indices", &indices), ("topk_length", &lists.lengths)];
        inputs.extend(a.sink.map(|s| ("attn_sink", s)));
        let params = [("d_v", int(a.values)), ("sm_scale", ParamValue::Float(a.scale))];
        self.one("mla_prefill_sparse", &inputs, &params, "out")
    }

    /// Index scores `Σ_h max(q[t, h]·k[n], 0) · weights[t, h]` of the first `ends[t]` keys; minus infinity for others.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn index_scores(
        &self,
        q: &TensorView,
        k: &TensorView,
        weights: &TensorView,
        ends: &[i32],
    ) -> Result<TensorView> {
        let ones = self.upload(&[k.shape[0]], &vec![1.0; k.shape[0]])?;
        let first = self.upload_i32(&[ends.len()], &vec![0; ends.len()])?;
        let last = self.upload_i32(&[ends.len()], ends)?;
        let inputs = [
            ("q", q),
            ("kv", k),
            ("kv_sf", &ones),
            ("weights", weights),
            ("cu_seq_len_k_start", &first),
            ("cu_seq_len_k_end", &last),
        ];
        self.one("indexer_logits_fp8", &inputs, &[], "logits")
    }

    /// Indices of the `k` largest of the first `ends[row]` of each row, -1 where there are fewer.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn topk(&self, x: &TensorView, k: usize, ends: &[i32]) -> Result<Vec<i64>> {
        let end = self.upload_i32(&[ends.len()], ends)?;
        let params = [
            ("k", int(k)),
            ("indices_type", ParamValue::Text("i32".into())),
            ("idx_oob_fill_value", ParamValue::Int(-1)),
        ];
        let picks = self.one("topk_select", &[("x", x), ("end", &end)], &params, "indices")?;
        self.download_integers(&picks)
    }

    /// Experts and weights of each token.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn gate(&self, logits: &TensorView, bias: &TensorView, g: &Gate<'_>) -> Result<Routing> {
        let mut inputs = vec![("logits", logits), ("bias", bias)];
        if let Some((ids, table)) = g.hash {
            inputs.extend([("token_ids", ids), ("token_to_experts", table)]);
        }
        let params = [
            ("num_topk", int(g.topk)),
            ("num_groups", int(g.groups)),
            ("num_topk_groups", int(g.topk_groups)),
            ("scoring", ParamValue::Text(g.scoring.into())),
            ("routed_scaling_factor", ParamValue::Float(g.scale)),
        ];
        let mut out = self.call("moe_gate", &inputs, &[], &params)?;
        let lost = |name: &str| OpError { op: "moe_gate".into(), message: format!("has no output `{name}`") };
        let ids = out.remove("topk_idx").ok_or_else(|| lost("topk_idx"))?;
        let weights = out.remove("topk_weights").ok_or_else(|| lost("topk_weights"))?;
        Ok(Routing { ids, weights })
    }

    /// Rows of `x` in the order of their experts, and where they went.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn dispatch(&self, x: &TensorView, routing: &Routing, experts: usize) -> Result<Dispatched> {
        let params = [("num_experts", int(experts)), ("alignment", int(1))];
        let maps = self.call("moe_fused_mapping", &[("topk_idx", &routing.ids)], &[], &params)?;
        let to = &maps["token_topk_to_pos"];
        let inputs = [("x", x), ("token_topk_to_pos", to), ("pos_to_expert", &maps["pos_to_expert"])];
        let rows = self.one("moe_expand_reduce", &inputs, &[], "expanded")?;
        let starts = self.download_integers(&maps["expert_start"])?;
        let ends = self.download_integers(&maps["expert_end"])?;
        let of_expert = starts.into_iter().zip(ends).map(|(a, b)| a as usize..b as usize).collect();
        let slots = maps["pos_to_token_topk"].clone();
        Ok(Dispatched { rows, of_expert, positions: to.clone(), slots })
    }

    /// Sums of the rows of each token's experts.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn combine(&self, y: &TensorView, sent: &Dispatched) -> Result<TensorView> {
        let inputs = [("y", y), ("token_topk_to_pos", &sent.positions)];
        self.one("moe_expand_reduce", &inputs, &[("out", ParamValue::Text("f32".into()))], "reduced")
    }

    /// `silu(g) · u` of the halves of each row, clamped if there is a limit.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn swiglu(&self, x: &TensorView, limit: Option<f64>) -> Result<TensorView> {
        let clamp = limit.map_or(ParamValue::Null, ParamValue::Float);
        self.one("swiglu_quant", &[("x", x)], &[("clamp", clamp)], "act")
    }

    /// As [`Operators::swiglu`], each row times the weight of the slot it came from.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn weighted_swiglu(
        &self,
        x: &TensorView,
        limit: Option<f64>,
        routing: &Routing,
        sent: &Dispatched,
    ) -> Result<TensorView> {
        let clamp = limit.map_or(ParamValue::Null, ParamValue::Float);
        let inputs = [("x", x), ("pos_to_token_topk", &sent.slots), ("topk_weights", &routing.weights)];
        self.one("swiglu_quant", &inputs, &[("clamp", clamp)], "act")
    }

    /// `n` equal streams of each row.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn streams(&self, x: &TensorView, n: usize) -> Result<TensorView> {
        self.one("mhc_expand", &[("x", x)], &[("mhc_mult", int(n))], "y")
    }

    /// What a site reads of the streams `h [t, n, d]`, and the weights of what it gives back.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn collapse(&self, h: &TensorView, w: &Mixing<'_>) -> Result<(TensorView, Expansion)> {
        let params = [
            ("sinkhorn_iters", int(w.iters)),
            ("rms_eps", ParamValue::Float(w.rms_eps)),
            ("pre_eps", ParamValue::Float(w.hc_eps)),
            ("post_mult", ParamValue::Float(2.0)),
            ("sinkhorn_eps", ParamValue::Float(w.hc_eps)),
        ];
        let inputs = [("residual", h), ("fn", w.fn_), ("scale", w.scale), ("base", w.base)];
        let out = self.call("mhc_pre", &inputs, &[], &params)?;
        let [x, pre, post, comb] = ["layer_input", "pre_mix", "post_mix", "comb_mix"].map(|name| out[name].clone());
        Ok((x, Expansion { pre, post, comb }))
    }

    /// The streams after a site gave `y`.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn expand(&self, y: &TensorView, h: &TensorView, e: &Expansion) -> Result<TensorView> {
        let inputs = [("x", y), ("residual", h), ("post_mix", &e.post), ("comb_mix", &e.comb)];
        self.one("mhc_post", &inputs, &[], "y")
    }

    /// Weights of the streams at the end of the network.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn head_mix(&self, mix: &TensorView, scale: &TensorView, base: &TensorView, eps: f64) -> Result<TensorView> {
        let inputs = [("mix", mix), ("scale", scale), ("base", base)];
        self.one("mhc_head_mix", &inputs, &[("pre_eps", ParamValue::Float(eps))], "y")
    }

    /// One entry for each whole group of rows of `kv` and `score`: the mean, and the mean normalised and turned.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn compress(&self, c: &Compress<'_>) -> Result<[TensorView; 2]> {
        let inputs = [
            ("kv", c.kv),
            ("score", c.score),
            ("ape", c.ape),
            ("norm_weight", c.norm),
            ("cos", &c.table.cos),
            ("sin", &c.table.sin),
        ];
        let params =
            [("ratio", int(c.ratio)), ("overlap", ParamValue::Bool(c.overlap)), ("eps", ParamValue::Float(c.eps))];
        let out = self.call("kv_compressor", &inputs, &[], &params)?;
        Ok(["pooled", "normed_rope"].map(|name| out[name].clone()))
    }

    /// Rows of n-gram tables, `[t, (g − 1)·tables]`, of the last ids of each position, the newest first, `[t, g]`.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn ngram_rows(&self, ids: &TensorView, h: &Hashing<'_>) -> Result<Vec<i64>> {
        let inputs = [
            ("ngram_token_ids", ids),
            ("multipliers", h.multipliers),
            ("vocab_sizes", h.sizes),
            ("offsets", h.offsets),
        ];
        self.download_integers(&self.one("engram_hash", &inputs, &[], "indices")?)
    }

    /// Streams `h [t, n, d]` with what they take of a memory's `value [t, d]` by their `keys [t, n, d]`.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn remember(
        &self,
        h: &TensorView,
        keys: &TensorView,
        value: &TensorView,
        weight: &TensorView,
        eps: f64,
    ) -> Result<TensorView> {
        let inputs = [("x", h), ("k", keys), ("v", value), ("weight_fused", weight)];
        self.one("engram_gate", &inputs, &[("eps", ParamValue::Float(eps))], "y")
    }

    /// `Σ_j pre[t, j] · h[t, j]`: one small product a token, the tokens being its heads.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn weighted_streams(&self, pre: &TensorView, h: &TensorView) -> Result<TensorView> {
        let (tokens, n, d) = (h.shape[0], h.shape[1], h.shape[2]);
        let x = self.empty(&[1, tokens, d])?;
        self.by_head_transposed_into(&reshaped(pre, &[1, tokens, n]), h, &x)?;
        Ok(reshaped(&x, &[tokens, d]))
    }

    /// The largest number of each row.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn row_maxima(&self, x: &TensorView) -> Result<Vec<f32>> {
        let params = [("k", int(1)), ("return_value", ParamValue::Bool(true))];
        self.download(&self.one("topk_select", &[("x", x)], &params, "values")?)
    }

    /// A token of one row of logits: the best at temperature 0, otherwise a draw that row, seed and position fix.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn sample(&self, logits: &TensorView, s: &Sampling, position: usize) -> Result<usize> {
        let temperature = self.upload(&[1], &[s.temperature as f32])?;
        let seeds = self.upload_i64(&[1], &[s.seed as i64])?;
        let positions = self.upload_i64(&[1], &[position as i64])?;
        let top_k = (s.top_k > 0).then(|| self.upload_i32(&[1], &[s.top_k as i32])).transpose()?;
        let share = |x: f64, off: f64| (x != off).then(|| self.upload(&[1], &[x as f32])).transpose();
        let (top_p, min_p) = (share(s.top_p, 1.0)?, share(s.min_p, 0.0)?);
        let mut inputs =
            vec![("logits", logits), ("temperature", &temperature), ("seeds", &seeds), ("positions", &positions)];
        inputs.extend(top_k.as_ref().map(|k| ("top_k", k)));
        inputs.extend(top_p.as_ref().map(|p| ("top_p", p)));
        inputs.extend(min_p.as_ref().map(|p| ("min_p", p)));
        let id = self.download_integers(&self.one("sampling", &inputs, &[], "token_ids")?)?;
        id.first().and_then(|&id| usize::try_from(id).ok()).ok_or_else(|| no_token("sampling"))
    }

    /// The best token of each row of logits.
    ///
    /// # Errors
    /// The operator's and the device's.
    pub fn argmax(&self, logits: &TensorView) -> Result<Vec<usize>> {
        let ends = vec![logits.shape[1] as i32; logits.shape[0]];
        let picks = self.topk(logits, 1, &ends)?;
        picks.into_iter().map(|id| usize::try_from(id).map_err(|_| no_token("topk_select"))).collect()
    }
}

/// Which channels turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `(2i, 2i + 1)`.
    Neighbours,
    /// `(i, i + half)`.
    Halves,
}

/// Cosines and sines, a row a token.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// `[t, pairs]`.
    pub cos: TensorView,
    /// `[t, pairs]`.
    pub sin: TensorView,
}

/// The keys each query sees.
#[derive(Clone, Debug)]
pub struct Lists {
    /// Rows of keys, `[t, most]` i32.
    pub indices: TensorView,
    /// How many count, `[t]` i32.
    pub lengths: TensorView,
}

/// How to attend.
#[derive(Clone, Copy, Debug)]
pub struct Attend<'a> {
    /// Columns of a key that are its value.
    pub values: usize,
    /// Factor of the scores.
    pub scale: f64,
    /// Logit of a key without value, a head each.
    pub sink: Option<&'a TensorView>,
}

/// How to route.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    /// Experts of a token.
    pub topk: usize,
    /// Groups of experts; 0 for none.
    pub groups: usize,
    /// Groups that count.
    pub topk_groups: usize,
    /// `sigmoid` or `sqrtsoftplus`.
    pub scoring: &'static str,
    /// `routed_scaling_factor`.
    pub scale: f64,
    /// Token ids, and the experts of every id.
    pub hash: Option<(&'a TensorView, &'a TensorView)>,
}

/// What a gate decided.
#[derive(Clone, Debug)]
pub struct Routing {
    /// Experts, `[t, k]` i64.
    pub ids: TensorView,
    /// Weights, `[t, k]`.
    pub weights: TensorView,
}

/// Rows in the order of experts.
#[derive(Clone, Debug)]
pub struct Dispatched {
    /// `[t·k, d]`.
    pub rows: TensorView,
    /// The rows of each expert.
    pub of_expert: Vec<std::ops::Range<usize>>,
    positions: TensorView,
    slots: TensorView,
}

/// Weights of a site's hyper-connection.
#[derive(Clone, Copy, Debug)]
pub struct Mixing<'a> {
    /// `hc_*_fn`.
    pub fn_: &'a TensorView,
    /// `hc_*_base`.
    pub base: &'a TensorView,
    /// `hc_*_scale`.
    pub scale: &'a TensorView,
    /// `hc_sinkhorn_iters`.
    pub iters: usize,
    /// `rms_norm_eps`.
    pub rms_eps: f64,
    /// `hc_eps`.
    pub hc_eps: f64,
}

/// How a site's result returns to the streams.
#[derive(Clone, Debug)]
pub struct Expansion {
    /// Weights of the streams in what the site reads, `[t, n]`.
    pub pre: TensorView,
    /// Weight of the result in each stream, `[t, n]`.
    pub post: TensorView,
    /// Weights of the streams in each other, `[t, n, n]`, the first index the one that is read.
    pub comb: TensorView,
}

/// How n-grams become rows.
#[derive(Clone, Copy, Debug)]
pub struct Hashing<'a> {
    /// `[1, g]` i64.
    pub multipliers: &'a TensorView,
    /// `[1, g − 1, tables]` i32.
    pub sizes: &'a TensorView,
    /// `[1, (g − 1)·tables]` i32.
    pub offsets: &'a TensorView,
}

/// Rows to compress.
#[derive(Clone, Copy, Debug)]
pub struct Compress<'a> {
    /// `[rows, wide]`.
    pub kv: &'a TensorView,
    /// `[rows, wide]`.
    pub score: &'a TensorView,
    /// Offsets by place in the group.
    pub ape: &'a TensorView,
    /// Norm of entries.
    pub norm: &'a TensorView,
    /// Angles of the first position of each group.
    pub table: &'a RopeTable,
    /// Rows of a group.
    pub ratio: usize,
    /// The group before counts too.
    pub overlap: bool,
    /// `rms_norm_eps`.
    pub eps: f64,
}

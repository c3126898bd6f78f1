//! The networks, top to bottom: V3 and V3.2 on one residual stream, V4 and V4.1 on several, and V4's prediction block.
//!
//! [`Model::load`] reads a folder, [`Model::step`] feeds tokens to a sequence's [`State`] and gives logits. All products, norms,
//! rotations, attention, routing and selection are operators of the kernel library in f32, so that results can be compared
//! with a reference; the embedding is a choice of rows. A step with many tokens and many steps with one are the same
//! procedure. With published numerics the activations that the published code rounds are rounded. Block drafting is in `draft`.
//! Not here: products on narrow operands, images, batches. Source: DeepSeek-V3, V3.2, V4 and V4.1 reports.

use crate::checkpoint::names;
use crate::checkpoint::shard::Checkpoint;
use crate::config::{self, Config, Family, V3, V4, V41};
use crate::draft::{Draft, DraftState, Drafter, first_stream};
use crate::error::{Error, Result};
use crate::layer::compressed::{Form, Windowed, WindowedState};
use crate::layer::csa2::{Csa2, Shared};
use crate::layer::engram::{Memory, Tables};
use crate::layer::experts::{Experts, Mlp};
use crate::layer::latent::{Latent, LatentState};
use crate::layer::streams::{HeadCollapse, Site};
use crate::operators::{Numerics, Operators, Rounding};
use crate::text::tokenizer::{self, Tokenizer};
use crate::text::{compress, refuse};
use crate::weights::{Matrix, Source};
use kiln_codegen::abi::TensorView;
use kiln_runtime::Device;
use std::path::Path;

/// A checkpoint on a device.
#[derive(Debug)]
pub struct Model {
    /// Its configuration.
    pub config: Config,
    /// The device's operators.
    pub ops: Operators,
    embed: Matrix,
    norm: TensorView,
    head: TensorView,
    network: Network,
    /// Block drafter, if the checkpoint holds one.
    pub drafter: Option<Drafter>,
}

#[derive(Debug)]
enum Network {
    Latent(Vec<LatentLayer>),
    Streams(Box<StreamNetwork>),
    Single { hc_mult: usize, layers: Vec<SingleLayer>, shared: Box<Shared> },
}

/// V4 between embedding and head.
#[derive(Debug)]
struct StreamNetwork {
    hc_mult: usize,
    layers: Vec<StreamLayer>,
    collapse: HeadCollapse,
    mtp: Option<Prediction>,
}

/// A layer of V3.
#[derive(Debug)]
struct LatentLayer {
    input_layernorm: TensorView,
    self_attn: Latent,
    post_attention_layernorm: TensorView,
    mlp: FeedForward,
}

#[derive(Debug)]
enum FeedForward {
    Dense(Mlp),
    Experts(Box<Experts>),
}

/// A layer of V4.
#[derive(Debug)]
struct StreamLayer {
    hc_attn: Site,
    attn: Windowed,
    hc_ffn: Site,
    ffn: Experts,
}

/// A layer of V4.1.
#[derive(Debug)]
struct SingleLayer {
    engram: Option<Memory>,
    hc_attn: Site,
    attn: Csa2,
    hc_ffn: Site,
    ffn: Experts,
}

/// V4's prediction block `mtp.0`.
#[derive(Debug)]
struct Prediction {
    enorm: TensorView,
    hnorm: TensorView,
    e_proj: TensorView,
    h_proj: TensorView,
    layer: StreamLayer,
    collapse: HeadCollapse,
    norm: TensorView,
}

/// What a model remembers of a sequence.
#[derive(Clone, Debug)]
pub struct State {
    /// Tokens so far.
    pub position: usize,
    /// Their ids.
    history: Vec<usize>,
    layers: Layers,
}

#[derive(Clone, Debug)]
enum Layers {
    Latent(Vec<LatentState>),
    Streams(Vec<WindowedState>),
    Single(Vec<WindowedState>, Box<Shared>),
}

/// What the prediction block remembers.
#[derive(Clone, Debug)]
pub struct PredictionState(WindowedState);

/// What a step gives.
#[derive(Clone, Debug)]
pub struct Output {
    /// `[t, vocab]`.
    pub logits: TensorView,
    /// V4: the streams after the last layer, `[t, n, d]`.
    pub streams: Option<TensorView>,
    /// V4: the streams after each layer.
    pub of_layer: Vec<TensorView>,
    /// With a drafter: its features of every token, `[t, targets · d]`.
    pub features: Option<TensorView>,
    /// V4.1: the entries each token saw in each layer.
    pub picks: Vec<Vec<Vec<usize>>>,
}

impl LatentLayer {
    fn load(source: Source<'_>, config: &Config, f: &V3, i: usize) -> Result<Self> {
        let p = format!("model.layers.{i}");
        let mlp = if i < f.first_k_dense_replace {
            FeedForward::Dense(Mlp::load(source, &format!("{p}.mlp"), ["gate_proj", "up_proj", "down_proj"])?)
        } else {
            FeedForward::Experts(Box::new(Experts::load(source, config, &config.moe, &format!("{p}.mlp"), false)?))
        };
        Ok(LatentLayer {
            input_layernorm: source.tensor(&format!("{p}.input_layernorm.weight"))?,
            self_attn: Latent::load(source, config, f, i)?,
            post_attention_layernorm: source.tensor(&format!("{p}.post_attention_layernorm.weight"))?,
            mlp,
        })
    }

    fn forward(
        &self,
        ops: &Operators,
        x: &TensorView,
        ids: &[usize],
        at: usize,
        eps: f64,
        state: &mut LatentState,
    ) -> Result<TensorView> {
        let h = ops.rmsnorm(x, Some(&self.input_layernorm), eps)?;
        let x = ops.add(x, &self.self_attn.forward(ops, &h, at, state)?)?;
        let h = ops.rmsnorm(&x, Some(&self.post_attention_layernorm), eps)?;
        let y = match &self.mlp {
            FeedForward::Dense(mlp) => mlp.forward(ops, &h, None)?,
            FeedForward::Experts(experts) => experts.forward(ops, &h, ids)?,
        };
        ops.add(&x, &y)
    }
}

impl StreamLayer {
    fn load(source: Source<'_>, config: &Config, f: &V4, prefix: &str, ratio: usize, hash: bool) -> Result<Self> {
        let site = |name: &str| Site::load(source, config, f.attention.hyper, prefix, name);
        Ok(StreamLayer {
            hc_attn: site("attn")?,
            attn: Windowed::load(source, config, &f.attention, prefix, ratio, Form::V4)?,
            hc_ffn: site("ffn")?,
            ffn: Experts::load(source, config, &config.moe, &format!("{prefix}.ffn"), hash)?,
        })
    }

    fn forward(
        &self,
        ops: &Operators,
        h: &TensorView,
        ids: &[usize],
        at: usize,
        state: &mut WindowedState,
    ) -> Result<TensorView> {
        let (x, back) = self.hc_attn.collapse(ops, h)?;
        let h = ops.expand(&self.attn.forward(ops, &x, at, state)?, h, &back)?;
        let (x, back) = self.hc_ffn.collapse(ops, &h)?;
        ops.expand(&self.ffn.forward(ops, &x, ids)?, &h, &back)
    }
}

impl SingleLayer {
    fn load(source: Source<'_>, config: &Config, f: &V41, tables: &Tables, i: usize) -> Result<Self> {
        let p = format!("layers.{i}");
        let site = |name: &str| Site::load(source, config, f.attention.hyper, &p, name);
        let at = f.engram.layer_ids.iter().position(|&l| l == i);
        Ok(SingleLayer {
            engram: at.map(|at| Memory::load(source, config, f, tables, at, i)).transpose()?,
            hc_attn: site("attn")?,
            attn: Csa2::load(source, config, f, i)?,
            hc_ffn: site("ffn")?,
            ffn: Experts::load(source, config, &config.moe, &format!("{p}.ffn"), false)?,
        })
    }

    /// The layer after its memory: streams, and the weights the next site collapses them with.
    fn forward(
        &self,
        ops: &Operators,
        (h, pre): (&TensorView, &TensorView),
        ids: &[usize],
        at: usize,
        state: &mut WindowedState,
        shared: &mut Shared,
    ) -> Result<(TensorView, TensorView)> {
        let (x, back) = self.hc_attn.collapse_by(ops, h, pre)?;
        let h = ops.expand(&self.attn.forward(ops, &x, at, state, shared)?, h, &back)?;
        let (x, next) = self.hc_ffn.collapse_by(ops, &h, &back.pre)?;
        let h = ops.expand(&self.ffn.forward(ops, &x, ids)?, &h, &next)?;
        Ok((h, next.pre))
    }
}

impl Network {
    fn v41(source: Source<'_>, config: &Config, f: &V41, tables: &Tables) -> Result<Self> {
        let layer = |i| SingleLayer::load(source, config, f, tables, i);
        let layers = (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?;
        Ok(Network::Single { hc_mult: f.attention.hyper.hc_mult, layers, shared: Box::new(Shared::new(f)) })
    }

    fn v3(source: Source<'_>, config: &Config, f: &V3) -> Result<Self> {
        let layer = |i| LatentLayer::load(source, config, f, i);
        Ok(Network::Latent((0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?))
    }

    fn v4(source: Source<'_>, config: &Config, f: &V4) -> Result<Self> {
        let hyper = f.attention.hyper;
        let ratio = |i: usize| f.attention.compress_ratios.get(i).copied().unwrap_or(0);
        let layer =
            |i: usize| StreamLayer::load(source, config, f, &format!("layers.{i}"), ratio(i), i < f.num_hash_layers);
        let serial = config.num_nextn_predict_layers > 0 && f.attention.dspark.is_none();
        let mtp = || -> Result<Prediction> {
            let part = |name: &str| source.tensor(&format!("mtp.0.{name}.weight"));
            Ok(Prediction {
                enorm: part("enorm")?,
                hnorm: part("hnorm")?,
                e_proj: part("e_proj")?,
                h_proj: part("h_proj")?,
                layer: StreamLayer::load(source, config, f, "mtp.0", 0, false)?,
                collapse: HeadCollapse::load(source, config, hyper, "mtp.0.")?,
                norm: part("norm")?,
            })
        };
        Ok(Network::Streams(Box::new(StreamNetwork {
            hc_mult: hyper.hc_mult,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            collapse: HeadCollapse::load(source, config, hyper, "")?,
            mtp: serial.then(mtp).transpose()?,
        })))
    }
}

impl Model {
    /// Reads a checkpoint's folder and puts its weights on a device.
    ///
    /// # Errors
    /// A configuration or tensors that are not as they should be, all of them; a model of V4.1, which needs its tokenizer;
    /// the device's errors.
    pub fn load(dir: &Path, device: &Device) -> Result<Self> {
        Self::load_with(dir, device, &Tables::default(), false)
    }

    /// As [`Model::load`], with the folder's tokenizer if there is one; V4.1's n-gram memory counts in its classes.
    ///
    /// # Errors
    /// As there; a tokenizer that cannot be used or does not fit.
    pub fn load_with_tokenizer(dir: &Path, device: &Device) -> Result<(Self, Option<Tokenizer>)> {
        let config = config::read(dir)?;
        let tokenizer = Tokenizer::of_folder(dir, config.vocab_size)?;
        let tables = match (&config.family, &tokenizer) {
            (Family::V41(f), Some(t)) => compress::tables(t, &f.engram)?,
            (Family::V41(_), None) => {
                let next = "put the checkpoint's tokenizer.json there";
                let why = "a tokenizer, since the n-gram memory counts in classes of its tokens";
                return refuse(dir.join(tokenizer::FILE), why, "no such file", next);
            }
            (Family::V3(_) | Family::V4(_), _) => Tables::default(),
        };
        Ok((Self::load_with(dir, device, &tables, false)?, tokenizer))
    }

    /// As [`Model::load`], with what V4.1's n-gram memory needs besides the checkpoint, and with the published roundings of
    /// the family or without.
    ///
    /// # Errors
    /// As there; tables that do not fit.
    pub fn load_with(dir: &Path, device: &Device, tables: &Tables, rounded: bool) -> Result<Self> {
        let config = config::read(dir)?;
        let checkpoint = Checkpoint::open(dir, config.weight_block())?;
        let faults = names::audit(&config, &checkpoint);
        if !faults.is_empty() {
            return Err(Error::Tensors(faults));
        }
        let numerics = match (&config.family, rounded) {
            (Family::V3(_), _) | (_, false) => Numerics::Exact,
            (Family::V4(_), true) => Numerics::Published(Rounding::V4),
            (Family::V41(_), true) => Numerics::Published(Rounding::V41),
        };
        let ops = Operators::with(device, numerics)?;
        let source = Source { checkpoint: &checkpoint, ops: &ops };
        let (network, [embed, norm, head]) = match &config.family {
            Family::V3(f) => {
                (Network::v3(source, &config, f)?, ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"])
            }
            Family::V4(f) => (Network::v4(source, &config, f)?, ["embed.weight", "norm.weight", "head.weight"]),
            Family::V41(f) => {
                (Network::v41(source, &config, f, tables)?, ["embed.weight", "norm.weight", "head.weight"])
            }
        };
        let (embed, norm, head) = (source.matrix(embed)?, source.tensor(norm)?, source.tensor(head)?);
        let drafter = Drafter::load(source, &config)?;
        Ok(Model { embed, norm, head, network, drafter, config, ops })
    }

    /// A sequence without tokens.
    pub fn start(&self) -> State {
        let layers = match &self.network {
            Network::Latent(layers) => Layers::Latent(layers.iter().map(|l| l.self_attn.start()).collect()),
            Network::Streams(net) => Layers::Streams(net.layers.iter().map(|l| l.attn.start()).collect()),
            Network::Single { layers, shared, .. } => {
                Layers::Single(layers.iter().map(|l| l.attn.start()).collect(), shared.clone())
            }
        };
        State { position: 0, history: vec![], layers }
    }

    /// Feeds tokens; logits row `i` is about the token after `ids[i]`.
    ///
    /// # Errors
    /// No tokens, ids outside of the vocabulary, more tokens than the model has positions; an operator's or the device's
    /// errors.
    pub fn step(&self, ids: &[usize], state: &mut State) -> Result<Output> {
        self.check(ids, state.position)?;
        let (ops, at, eps) = (&self.ops, state.position, self.config.rms_norm_eps);
        let mut x = self.embedding(ids)?;
        let (mut streams, mut of_layer, mut picks) = (None, vec![], vec![]);
        let mut features = Features { of_target: vec![], targets: self.targets(), tokens: ids.len() };
        state.history.extend(ids);
        match (&self.network, &mut state.layers) {
            (Network::Latent(layers), Layers::Latent(states)) => {
                for (layer, state) in layers.iter().zip(states) {
                    x = layer.forward(ops, &x, ids, at, eps, state)?;
                }
            }
            (Network::Streams(net), Layers::Streams(states)) => {
                let mut h = ops.streams(&x, net.hc_mult)?;
                for (i, (layer, state)) in net.layers.iter().zip(states).enumerate() {
                    h = layer.forward(ops, &h, ids, at, state)?;
                    features.take(ops, i, &h)?;
                    of_layer.push(h.clone());
                }
                x = net.collapse.forward(ops, &h)?;
                streams = Some(h);
            }
            (Network::Single { hc_mult, layers, .. }, Layers::Single(states, shared)) => {
                let mut h = ops.streams(&x, *hc_mult)?;
                let mut pre = first_stream(ops, ids.len(), *hc_mult)?;
                for (i, (layer, window)) in layers.iter().zip(states).enumerate() {
                    if let Some(engram) = &layer.engram {
                        h = engram.forward(ops, &h, &state.history, at)?;
                    }
                    features.take(ops, i, &h)?;
                    (h, pre) = layer.forward(ops, (&h, &pre), ids, at, window, shared)?;
                    picks.push(shared.picks.clone());
                }
                x = ops.weighted_streams(&pre, &h)?;
                streams = Some(h);
            }
            (Network::Latent(_) | Network::Streams(_) | Network::Single { .. }, _) => {
                return Err(self.foreign("a state of this model"));
            }
        }
        state.position += ids.len();
        Ok(Output { logits: self.logits(&x, &self.norm)?, streams, of_layer, features: features.joined(ops)?, picks })
    }

    /// Layers whose streams the drafter reads.
    fn targets(&self) -> Vec<usize> {
        self.drafter.as_ref().map_or(vec![], |d| d.settings.target_layer_ids.clone())
    }

    /// Rows of V4.1's n-gram tables for some tokens, a list a layer that has a memory.
    ///
    /// # Errors
    /// An operator's or the device's.
    pub fn engram_rows(&self, ids: &[usize]) -> Result<Vec<(usize, Vec<i64>)>> {
        let Network::Single { layers, .. } = &self.network else { return Ok(vec![]) };
        let with = layers.iter().enumerate().filter_map(|(i, l)| l.engram.as_ref().map(|m| (i, m)));
        with.map(|(i, m)| Ok((i, m.rows(&self.ops, ids, 0)?))).collect()
    }

    /// Drafts what follows `token`.
    ///
    /// # Errors
    /// A model without a drafter; an operator's or the device's errors.
    pub fn draft(&self, token: usize, state: &DraftState) -> Result<Draft> {
        let Some(drafter) = &self.drafter else { return Err(self.foreign("a model with a drafter")) };
        self.check(&[token], state.position)?;
        drafter.draft(&self.ops, &self.embed, &self.head, token, state)
    }

    /// The prediction block's memory of a sequence, if the model has the block.
    pub fn start_prediction(&self) -> Option<PredictionState> {
        match &self.network {
            Network::Streams(net) => net.mtp.as_ref().map(|m| PredictionState(m.layer.attn.start())),
            Network::Latent(_) | Network::Single { .. } => None,
        }
    }

    /// Logits of the token after next: from the backbone's streams at positions from `at` on, and the token that followed each.
    ///
    /// # Errors
    /// A model without prediction block; as [`Model::step`].
    pub fn predict(
        &self,
        streams: &TensorView,
        next: &[usize],
        at: usize,
        state: &mut PredictionState,
    ) -> Result<TensorView> {
        let Network::Streams(net) = &self.network else {
            return Err(self.foreign("a model with a prediction block"));
        };
        let Some(m) = &net.mtp else { return Err(self.foreign("a model with a prediction block")) };
        self.check(next, at)?;
        let (ops, eps) = (&self.ops, self.config.rms_norm_eps);
        let e = ops.narrow(&ops.rmsnorm(&self.embedding(next)?, Some(&m.enorm), eps)?, &m.e_proj)?;
        let s = ops.narrow(&ops.rmsnorm(streams, Some(&m.hnorm), eps)?, &m.h_proj)?;
        let h = ops.add(&ops.streams(&e, net.hc_mult)?, &s)?;
        let h = m.layer.forward(ops, &h, next, at, &mut state.0)?;
        self.logits(&m.collapse.forward(ops, &h)?, &m.norm)
    }

    /// Rows of the embedding.
    fn embedding(&self, ids: &[usize]) -> Result<TensorView> {
        self.ops.upload(&[ids.len(), self.embed.columns], &self.embed.pick(ids.iter().copied()).values)
    }

    fn logits(&self, x: &TensorView, norm: &TensorView) -> Result<TensorView> {
        self.ops.linear(&self.ops.rmsnorm(x, Some(norm), self.config.rms_norm_eps)?, &self.head)
    }

    fn check(&self, ids: &[usize], at: usize) -> Result<()> {
        let (vocab, most) = (self.config.vocab_size, self.config.max_position_embeddings);
        let refuse = |expected: String, got: String| {
            let (place, next) = (self.config.file.clone(), "shorten the prompt or correct its ids".into());
            Err(Error::Input { place, expected, got, next })
        };
        match ids.iter().find(|&&id| id >= vocab) {
            Some(id) => refuse(format!("token ids below `vocab_size` {vocab}"), id.to_string()),
            None if ids.is_empty() => refuse("at least one token".into(), "none".into()),
            None if at + ids.len() > most => {
                refuse(format!("at most `max_position_embeddings` {most} tokens"), (at + ids.len()).to_string())
            }
            None => Ok(()),
        }
    }

    fn foreign(&self, expected: &str) -> Error {
        Error::Input {
            place: self.config.file.clone(),
            expected: expected.into(),
            got: "another one".into(),
            next: "start a state with `Model::start` of the model that is stepped".into(),
        }
    }
}

/// The drafter's features of one step: means over the streams of its target layers.
struct Features {
    targets: Vec<usize>,
    of_target: Vec<Vec<f32>>,
    tokens: usize,
}

impl Features {
    fn take(&mut self, ops: &Operators, layer: usize, h: &TensorView) -> Result<()> {
        if self.targets.contains(&layer) {
            let (tokens, n) = (h.shape[0], h.shape[1]);
            let equal = ops.upload(&[tokens, n], &vec![1.0 / n as f32; tokens * n])?;
            self.of_target.push(ops.download(&ops.weighted_streams(&equal, h)?)?);
        }
        Ok(())
    }

    /// One row a token, targets side by side in the order of layers.
    fn joined(self, ops: &Operators) -> Result<Option<TensorView>> {
        let Some(width) = self.of_target.first().map(|f| f.len() / self.tokens) else { return Ok(None) };
        let row = |t: usize| self.of_target.iter().flat_map(move |f| &f[t * width..(t + 1) * width]).copied();
        let values: Vec<f32> = (0..self.tokens).flat_map(row).collect();
        Ok(Some(ops.upload(&[self.tokens, width * self.of_target.len()], &values)?))
    }
}

//! The keys of each family, in the order of the published files, and what they must agree on.

use super::read::Reader;
use super::{
    Compressed, Config, Dspark, Engram, Family, Hyper, Indexer, METADATA, Moe, Quantization, Rope, V3, V4, V41, Yarn,
};
use serde_json::json;
use std::path::Path;

/// V3, V3.2 and V4: all keys on one level.
pub(super) fn flat(file: &Path, kind: &str, r: &mut Reader<'_>) -> Option<Config> {
    let v4 = kind == "deepseek_v4";
    let quantization = quantization(r);
    let mut config = shared(file, r, v4, quantization);
    config.family = if v4 {
        let attention = compressed(r, &config, true);
        let num_hash_layers = r.count_or("num_hash_layers", 0, 0);
        if num_hash_layers > config.num_hidden_layers {
            let most = format!("at most `num_hidden_layers` {}", config.num_hidden_layers);
            r.wrong("num_hash_layers", most, num_hash_layers.to_string(), "correct one of the two");
        }
        Family::V4(V4 { attention, num_hash_layers })
    } else {
        Family::V3(v3(r, &config, kind == "deepseek_v32"))
    };
    Some(config)
}

/// V4.1: the text model in `text_config`.
pub(super) fn nested(file: &Path, r: &mut Reader<'_>) -> Option<Config> {
    let quantization = quantization(r);
    let (bos, eos) = (r.token_ids("bos_token_id"), r.token_ids("eos_token_id"));
    let image_token_id = r.count_or("image_token_id", 0, 129_264);
    // The vision tower's forward pass is not part of this crate; its sizes are not read.
    r.ignore(&["vision_config", "tie_word_embeddings"]);
    let Some(mut t) = r.object("text_config") else {
        if r.problems.is_empty() {
            r.wrong("text_config", "an object", "nothing", "copy it from the published checkpoint");
        }
        return None;
    };
    t.ignore(&METADATA);
    let mut config = shared(file, &mut t, true, quantization);
    if !bos.is_empty() {
        config.bos_token_ids = bos;
    }
    if !eos.is_empty() {
        config.eos_token_ids = eos;
    }
    let attention = compressed(&mut t, &config, false);
    let layers = config.num_hidden_layers;
    let sources = |t: &mut Reader<'_>, key: &str| {
        let list = t.counts(key);
        if list.iter().any(|&l| l >= layers) || !list.is_sorted_by(|a, b| a < b) {
            let want = format!("rising layer numbers below `num_hidden_layers` {layers}");
            t.wrong(key, want, format!("{list:?}"), "copy the list from the published checkpoint");
        }
        list
    };
    let kv_source_layer_ids = sources(&mut t, "kv_source_layer_ids");
    let index_source_layer_ids = sources(&mut t, "index_source_layer_ids");
    if let Some(lost) = kv_source_layer_ids.iter().find(|l| !index_source_layer_ids.contains(l)) {
        let want = format!("layer {lost} of `kv_source_layer_ids` among them");
        t.wrong("index_source_layer_ids", want, format!("{index_source_layer_ids:?}"), "correct one of the two lists");
    }
    let candidate_source_layer_id = t.count("candidate_source_layer_id", 0);
    if !index_source_layer_ids.contains(&candidate_source_layer_id) {
        let want = format!("one of `index_source_layer_ids`, {index_source_layer_ids:?}");
        t.wrong("candidate_source_layer_id", want, candidate_source_layer_id.to_string(), "correct one of the two");
    }
    // Every layer that reads entries reads those of a source at or before it.
    let first_reader = attention.compress_ratios.iter().take(layers).position(|&r| r > 0);
    let reads = first_reader.or(index_source_layer_ids.first().copied());
    if let Some(i) = reads
        && kv_source_layer_ids.first().is_none_or(|&first| first > i)
    {
        let want = format!("a source at layer {i} or before, which reads entries");
        t.wrong("kv_source_layer_ids", want, format!("{kv_source_layer_ids:?}"), "correct one of the lists");
    }
    let engram_layers = sources(&mut t, "engram_layer_ids");
    let engram = Engram {
        num_embeddings: t.counts("engram_num_embeddings"),
        max_ngram_size: t.count("engram_max_ngram_size", 2),
        vocab_size: t.count("engram_vocab_size", 1),
        n_heads: t.count("engram_n_heads", 1),
        head_dim: t.count("engram_head_dim", 1),
        pad_token_id: t.count("engram_pad_token_id", 0),
        compressed_vocab_size: t.count("engram_compressed_vocab_size", 1),
        layer_ids: engram_layers,
    };
    if engram.num_embeddings.len() != engram.layer_ids.len() {
        let want = format!("{} entries, one for each of `engram_layer_ids`", engram.layer_ids.len());
        let got = format!("{} entries", engram.num_embeddings.len());
        t.wrong("engram_num_embeddings", want, got, "correct one of the two lists");
    }
    let family = V41 {
        attention,
        kv_source_layer_ids,
        index_source_layer_ids,
        candidate_source_layer_id,
        candidate_topk_blocks: t.count("candidate_topk_blocks", 1),
        candidate_block_size: t.count("candidate_block_size", 1),
        engram,
        image_token_id,
    };
    config.family = Family::V41(family);
    r.close(t);
    Some(config)
}

/// Keys of all families. The family itself is filled in by the caller.
fn shared(file: &Path, r: &mut Reader<'_>, v4: bool, quantization: Option<Quantization>) -> Config {
    r.only("hidden_act", json!("silu"));
    r.only("tie_word_embeddings", json!(false));
    r.only("attention_bias", json!(false));
    r.only("attention_dropout", json!(0.0));
    r.only("moe_layer_freq", json!(1));
    r.only("norm_topk_prob", json!(true));
    r.only("topk_method", json!("noaux_tc"));
    r.only("scoring_func", json!(if v4 { "sqrtsoftplus" } else { "sigmoid" }));
    r.only("expert_dtype", json!("fp4"));
    let num_attention_heads = r.count("num_attention_heads", 1);
    let key_heads = if v4 { 1 } else { num_attention_heads };
    let given = r.count_or("num_key_value_heads", 1, key_heads);
    if given != key_heads {
        let want = if v4 { "1, the shared key head".into() } else { format!("`num_attention_heads`, {key_heads}") };
        r.wrong("num_key_value_heads", want, given.to_string(), "copy the key from the published checkpoint");
    }
    let moe = Moe {
        n_routed_experts: r.count("n_routed_experts", 1),
        n_shared_experts: r.count("n_shared_experts", 1),
        num_experts_per_tok: r.count("num_experts_per_tok", 1),
        moe_intermediate_size: r.count("moe_intermediate_size", 1),
        routed_scaling_factor: r.number("routed_scaling_factor", true),
        swiglu_limit: if v4 { Some(r.number("swiglu_limit", true)) } else { None },
    };
    if moe.num_experts_per_tok > moe.n_routed_experts {
        let want = format!("at most `n_routed_experts`, {}", moe.n_routed_experts);
        r.wrong("num_experts_per_tok", want, moe.num_experts_per_tok.to_string(), "correct one of the two");
    }
    let qk_rope_head_dim = r.count("qk_rope_head_dim", 2);
    if !qk_rope_head_dim.is_multiple_of(2) {
        r.wrong("qk_rope_head_dim", "an even number", qk_rope_head_dim.to_string(), "channels rotate in pairs");
    }
    let rope_theta = r.number("rope_theta", true);
    let rope = Rope { qk_rope_head_dim, rope_theta, rope_scaling: yarn(r, rope_theta, v4) };
    let vocab_size = r.count("vocab_size", 1);
    let (bos_token_ids, eos_token_ids) = (r.token_ids("bos_token_id"), r.token_ids("eos_token_id"));
    for (key, ids) in [("bos_token_id", &bos_token_ids), ("eos_token_id", &eos_token_ids)] {
        if let Some(id) = ids.iter().find(|&&id| id >= vocab_size) {
            r.wrong(key, format!("ids below `vocab_size` {vocab_size}"), id.to_string(), "correct one of the two");
        }
    }
    Config {
        file: file.to_path_buf(),
        vocab_size,
        hidden_size: r.count("hidden_size", 1),
        num_hidden_layers: r.count("num_hidden_layers", 1),
        num_attention_heads,
        rms_norm_eps: r.number("rms_norm_eps", true),
        max_position_embeddings: r.count("max_position_embeddings", 1),
        bos_token_ids,
        eos_token_ids,
        num_nextn_predict_layers: r.count_or("num_nextn_predict_layers", 0, 0),
        moe,
        rope,
        quantization,
        // Replaced by the caller.
        family: Family::V3(V3 {
            intermediate_size: 1,
            first_k_dense_replace: 0,
            q_lora_rank: 1,
            kv_lora_rank: 1,
            qk_nope_head_dim: 1,
            v_head_dim: 1,
            n_group: 1,
            topk_group: 1,
            indexer: None,
        }),
    }
}

fn v3(r: &mut Reader<'_>, config: &Config, selects: bool) -> V3 {
    let family = V3 {
        intermediate_size: r.count("intermediate_size", 1),
        first_k_dense_replace: r.count("first_k_dense_replace", 0),
        q_lora_rank: r.count("q_lora_rank", 1),
        kv_lora_rank: r.count("kv_lora_rank", 1),
        qk_nope_head_dim: r.count("qk_nope_head_dim", 1),
        v_head_dim: r.count("v_head_dim", 1),
        n_group: r.count("n_group", 1),
        topk_group: r.count("topk_group", 1),
        indexer: selects.then(|| indexer(r, config)),
    };
    let experts = config.moe.n_routed_experts;
    if !experts.is_multiple_of(family.n_group) {
        let want = format!("a divisor of `n_routed_experts`, {experts}");
        r.wrong("n_group", want, family.n_group.to_string(), "correct one of the two");
    } else if family.topk_group > family.n_group {
        let want = format!("at most `n_group`, {}", family.n_group);
        r.wrong("topk_group", want, family.topk_group.to_string(), "correct one of the two");
    } else if family.topk_group * (experts / family.n_group) < config.moe.num_experts_per_tok {
        let have = family.topk_group * (experts / family.n_group);
        let want = format!("groups that hold `num_experts_per_tok`, {}, experts", config.moe.num_experts_per_tok);
        r.wrong("topk_group", want, format!("{have} experts"), "correct one of the keys");
    }
    if family.first_k_dense_replace > config.num_hidden_layers {
        let want = format!("at most `num_hidden_layers`, {}", config.num_hidden_layers);
        r.wrong("first_k_dense_replace", want, family.first_k_dense_replace.to_string(), "correct one of the two");
    }
    family
}

fn indexer(r: &mut Reader<'_>, config: &Config) -> Indexer {
    let x = Indexer {
        index_n_heads: r.count("index_n_heads", 1),
        index_head_dim: r.count("index_head_dim", 1),
        index_topk: r.count("index_topk", 1),
    };
    let turned = config.rope.qk_rope_head_dim;
    if x.index_head_dim < turned {
        let want = format!("at least `qk_rope_head_dim`, {turned}");
        r.wrong("index_head_dim", want, x.index_head_dim.to_string(), "correct one of the two");
    }
    x
}

/// `four` tells V4 from V4.1.
fn compressed(r: &mut Reader<'_>, config: &Config, four: bool) -> Compressed {
    let x = Compressed {
        head_dim: r.count("head_dim", 1),
        q_lora_rank: r.count("q_lora_rank", 1),
        o_lora_rank: r.count("o_lora_rank", 1),
        o_groups: r.count("o_groups", 1),
        sliding_window: r.count("sliding_window", 1),
        compress_ratios: r.counts("compress_ratios"),
        compress_rope_theta: r.number("compress_rope_theta", true),
        indexer: indexer(r, config),
        hyper: Hyper {
            hc_mult: r.count("hc_mult", 1),
            hc_sinkhorn_iters: r.count("hc_sinkhorn_iters", 1),
            hc_eps: r.number("hc_eps", true),
        },
        dspark: dspark(r, config, four),
    };
    if x.head_dim < config.rope.qk_rope_head_dim {
        let want = format!("at least `qk_rope_head_dim`, {}", config.rope.qk_rope_head_dim);
        r.wrong("head_dim", want, x.head_dim.to_string(), "correct one of the two");
    }
    if !config.num_attention_heads.is_multiple_of(x.o_groups) {
        let want = format!("a divisor of `num_attention_heads`, {}", config.num_attention_heads);
        r.wrong("o_groups", want, x.o_groups.to_string(), "correct one of the two");
    }
    let (layers, drafts) = (config.num_hidden_layers, config.num_nextn_predict_layers);
    let most = layers + config.draft_stages();
    let given = x.compress_ratios.len();
    // Some checkpoints with more draft stages than they count leave their entries out.
    if given < layers || given > most {
        let want = format!("one entry for each of {layers} layers and {drafts} prediction layers");
        r.wrong("compress_ratios", want, format!("{given} entries"), "copy the list from the published checkpoint");
    }
    x
}

fn dspark(r: &mut Reader<'_>, config: &Config, four: bool) -> Option<Dspark> {
    // Without it the others would say nothing, so they are left to the unknown keys.
    r.get("dspark_block_size")?;
    let x = Dspark {
        block_size: r.count("dspark_block_size", 1),
        noise_token_id: r.count("dspark_noise_token_id", 0),
        target_layer_ids: r.counts("dspark_target_layer_ids"),
        markov_rank: r.count("dspark_markov_rank", 1),
        n_routed_experts: if four { config.moe.n_routed_experts } else { r.count("dspark_n_routed_experts", 1) },
        num_experts_per_tok: if four {
            config.moe.num_experts_per_tok
        } else {
            r.count("dspark_num_experts_per_tok", 1)
        },
    };
    if x.noise_token_id >= config.vocab_size {
        let want = format!("an id below `vocab_size`, {}", config.vocab_size);
        r.wrong("dspark_noise_token_id", want, x.noise_token_id.to_string(), "correct one of the two");
    }
    if x.target_layer_ids.is_empty() || x.target_layer_ids.iter().any(|&l| l >= config.num_hidden_layers) {
        let want = format!("layer numbers below `num_hidden_layers`, {}", config.num_hidden_layers);
        let got = format!("{:?}", x.target_layer_ids);
        r.wrong("dspark_target_layer_ids", want, got, "copy the list from the published checkpoint");
    }
    Some(x)
}

fn yarn(r: &mut Reader<'_>, theta: f64, v4: bool) -> Option<Yarn> {
    let mut s = r.object("rope_scaling")?;
    // Two spellings of one key, and both in files that were saved again.
    let old = s.word_or("type", &["yarn"], "");
    let new = s.word_or("rope_type", &["yarn"], "");
    if old.is_empty() && new.is_empty() {
        s.wrong("type", "\"yarn\"", "nothing", "add the key as the published checkpoint has it");
    }
    let again = s.number_or("rope_theta", true, theta);
    if again != theta {
        s.wrong("rope_theta", format!("the outer `rope_theta`, {theta}"), again.to_string(), "correct one of the two");
    }
    let yarn = Yarn {
        factor: s.number("factor", true),
        original_max_position_embeddings: s.number("original_max_position_embeddings", true),
        beta_fast: s.number_or("beta_fast", true, 32.0),
        beta_slow: s.number_or("beta_slow", true, 1.0),
        mscale: if v4 { 0.0 } else { s.number_or("mscale", false, 1.0) },
        mscale_all_dim: if v4 { 0.0 } else { s.number_or("mscale_all_dim", false, 0.0) },
    };
    r.close(s);
    Some(yarn)
}

fn quantization(r: &mut Reader<'_>) -> Option<Quantization> {
    let mut q = r.object("quantization_config")?;
    q.word("quant_method", &["fp8"]);
    q.word_or("fmt", &["e4m3"], "e4m3");
    q.word_or("scale_fmt", &["ue8m0"], "ue8m0");
    q.word_or("activation_scheme", &["dynamic"], "dynamic");
    q.word_or("expert_dtype", &["fp4"], "fp4");
    let block = q.counts("weight_block_size");
    let size = match block[..] {
        [rows, columns] if rows > 0 && columns > 0 => [rows, columns],
        _ => {
            let next = "copy it from the published checkpoint";
            q.wrong("weight_block_size", "two numbers above 0", format!("{block:?}"), next);
            [128, 128]
        }
    };
    r.close(q);
    Some(Quantization { weight_block_size: size })
}

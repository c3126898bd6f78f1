//! Every key of `config.json` is looked at: left out, of another type, unknown, or in contradiction to another it is named; and
//! the published models' tensor lists and caches come out of their configurations exactly.
#![recursion_limit = "256"]

use kiln_model::checkpoint::names::{Storage, expected};
use kiln_model::config::{Config, ConfigError, Family, parse};
use kiln_model::inspect;
use serde_json::{Value, json};
use std::path::Path;

fn committed(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models").join(name).join("config.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("reads")).expect("JSON")
}

const CASES: [&str; 6] = ["v3", "v32", "v4_hca128", "v4_moe", "v4_mtp", "v41"];

fn read(json: &Value) -> Result<Config, ConfigError> {
    parse(Path::new("some/config.json"), json)
}

/// The object that holds the network's keys, and what precedes them in messages.
fn network(json: &mut Value) -> (&'static str, &mut serde_json::Map<String, Value>) {
    let nested = json.get("text_config").is_some();
    let object = if nested { &mut json["text_config"] } else { json };
    (if nested { "text_config." } else { "" }, object.as_object_mut().expect("an object"))
}

/// A refusal that names file and key and says what to do.
fn names(e: &ConfigError, key: &str) {
    let text = e.to_string();
    assert!(e.problems.iter().any(|p| p.key == key), "no `{key}` in: {text}");
    assert!(text.contains("some/config.json: ") && text.contains("expected") && text.contains("next: "), "{text}");
}

#[test]
fn the_committed_configurations_are_read() {
    let kinds: Vec<&str> =
        CASES.map(|c| read(&committed(c)).unwrap_or_else(|e| panic!("{c}: {e}")).architecture()).into();
    assert_eq!(kinds, ["v3", "v32", "v4", "v4", "v4", "v41"]);
}

/// Keys that have a value the network takes if they are left out.
const OPTIONAL: [&str; 24] = [
    "architectures",
    "num_key_value_heads",
    "hidden_act",
    "norm_topk_prob",
    "scoring_func",
    "topk_method",
    "rope_scaling",
    "tie_word_embeddings",
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "num_nextn_predict_layers",
    "num_hash_layers",
    "torch_dtype",
    "dtype",
    "model_type",
    "dspark_block_size",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "dspark_markov_rank",
    "dspark_n_routed_experts",
    "dspark_num_experts_per_tok",
    "image_token_id",
];

#[test]
fn a_key_that_is_missing_is_named() {
    for case in CASES {
        let mut whole = committed(case);
        let keys: Vec<String> = network(&mut whole).1.keys().cloned().collect();
        let mut refused = 0;
        for key in keys.iter().filter(|k| !OPTIONAL.contains(&k.as_str())) {
            let mut json = committed(case);
            let (prefix, object) = network(&mut json);
            object.remove(key);
            let e = read(&json).expect_err(&format!("{case} without {key}"));
            names(&e, &format!("{prefix}{key}"));
            refused += 1;
        }
        assert!(refused >= 17, "{case}: {refused}");
    }
}

#[test]
fn a_key_of_another_type_is_named() {
    // What nothing in the network depends on may hold anything.
    let free = ["torch_dtype", "dtype", "pad_token_id"];
    for case in CASES {
        let mut whole = committed(case);
        let keys: Vec<String> = network(&mut whole).1.keys().cloned().collect();
        for key in keys.iter().filter(|k| !free.contains(&k.as_str())) {
            let mut json = committed(case);
            let (prefix, object) = network(&mut json);
            let inner = prefix.is_empty() || key != "model_type";
            object.insert(key.clone(), json!({"a": [1.5]}));
            if inner {
                let e = read(&json).expect_err(&format!("{case} with a wrong {key}"));
                let want = format!("{prefix}{key}");
                assert!(e.problems.iter().any(|p| p.key.starts_with(&want)), "{case}: no `{want}` in: {e}");
            }
        }
    }
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one() {
    for case in CASES {
        let mut json = committed(case);
        let (prefix, object) = network(&mut json);
        object.insert("hiden_size".into(), json!(64));
        object.insert("flux_capacitor".into(), json!(1.21));
        let e = read(&json).expect_err(case);
        names(&e, &format!("{prefix}hiden_size"));
        names(&e, &format!("{prefix}flux_capacitor"));
        assert!(e.to_string().contains("if `hidden_size` is meant"), "{e}");
        assert_eq!(e.problems.len(), 2, "{e}");
    }
    let mut json = committed("v3");
    json["rope_scaling"]["beta_slwo"] = json!(1);
    names(&read(&json).expect_err("inside"), "rope_scaling.beta_slwo");
}

#[test]
fn keys_that_contradict_each_other_are_named() {
    let refused = |case: &str, key: &str, value: Value| {
        let mut json = committed(case);
        network(&mut json).1.insert(key.into(), value);
        read(&json).expect_err(&format!("{case}: {key}"))
    };
    for (case, key, value) in [
        ("v3", "architectures", json!(["DeepseekV4ForCausalLM"])),
        ("v3", "num_key_value_heads", json!(1)),
        ("v4_moe", "num_key_value_heads", json!(4)),
        ("v3", "num_experts_per_tok", json!(9)),
        ("v3", "qk_rope_head_dim", json!(15)),
        ("v3", "n_group", json!(3)),
        ("v3", "topk_group", json!(5)),
        ("v3", "topk_group", json!(1)),
        ("v3", "first_k_dense_replace", json!(4)),
        ("v3", "tie_word_embeddings", json!(true)),
        ("v3", "hidden_act", json!("gelu")),
        ("v3", "scoring_func", json!("sqrtsoftplus")),
        ("v3", "bos_token_id", json!(256)),
        ("v3", "eos_token_id", json!([1, 300])),
        ("v32", "index_head_dim", json!(8)),
        ("v4_moe", "head_dim", json!(8)),
        ("v4_moe", "o_groups", json!(3)),
        ("v4_moe", "num_hash_layers", json!(4)),
        ("v4_moe", "compress_ratios", json!([0, 0])),
        ("v4_moe", "scoring_func", json!("sigmoid")),
    ] {
        names(&refused(case, key, value), key);
    }
    for (key, value) in [
        ("kv_source_layer_ids", json!([2, 8])),
        ("index_source_layer_ids", json!([4, 6])),
        ("engram_num_embeddings", json!([304])),
        ("candidate_source_layer_id", json!(5)),
        ("kv_source_layer_ids", json!([4])),
        ("dspark_target_layer_ids", json!([5, 6, 9])),
        ("dspark_noise_token_id", json!(256)),
    ] {
        names(&refused("v41", key, value), &format!("text_config.{key}"));
    }
    let mut json = committed("v3");
    json["rope_scaling"]["rope_theta"] = json!(5.0);
    names(&read(&json).expect_err("two thetas"), "rope_scaling.rope_theta");
}

#[test]
fn files_that_are_no_configuration() {
    for json in [json!([]), json!(3), json!({}), json!({"model_type": "llama"}), json!({"model_type": 7})] {
        assert!(read(&json).expect_err("refused").to_string().contains("next: "));
    }
    let e = kiln_model::config::read(Path::new("no/such/folder")).expect_err("no file").to_string();
    assert!(e.contains("no/such/folder/config.json") && e.contains("next: "), "{e}");
}

/// The published V4-Flash: sizes of its report.
fn v4_flash() -> Value {
    let mut ratios = vec![0, 0];
    ratios.extend((2..43).map(|i| if i % 2 == 0 { 4 } else { 128 }));
    ratios.push(0);
    json!({
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280,
        "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1,
        "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_groups": 8, "o_lora_rank": 1024,
        "sliding_window": 128, "compress_ratios": ratios, "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
            "beta_slow": 1},
        "max_position_embeddings": 1048576, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6,
        "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": true,
        "routed_scaling_factor": 1.5, "num_hash_layers": 3, "swiglu_limit": 10.0, "hc_mult": 4,
        "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "num_nextn_predict_layers": 1,
        "tie_word_embeddings": false, "attention_bias": false, "bos_token_id": 0, "eos_token_id": 1,
        "expert_dtype": "fp4", "hidden_act": "silu",
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    })
}

/// Tensors and bytes of a checkpoint stored as published: e4m3 linears, e2m1 experts, scales of one byte.
fn stored(c: &Config) -> (usize, usize) {
    let block = c.quantization.map_or([128, 128], |q| q.weight_block_size);
    let (mut count, mut bytes) = (0, 0);
    for t in expected(c).iter().filter(|t| !t.optional) {
        let n: usize = t.shape.iter().product();
        let columns = t.shape.get(1).copied().unwrap_or(1);
        let (size, scales) = match t.storage {
            Storage::Plain => (2 * n, 0),
            Storage::Exact => (4 * n, 0),
            Storage::Ids => (8 * n, 0),
            Storage::Linear => (n, t.shape[0].div_ceil(block[0]) * columns.div_ceil(block[1])),
            Storage::Expert => (n / 2, t.shape[0] * columns.div_ceil(32)),
            Storage::Table => (n, t.shape[0] * columns.div_ceil(32)),
        };
        count += 1 + usize::from(scales > 0);
        bytes += size + scales;
    }
    (count, bytes)
}

#[test]
fn the_published_v4_flash_has_its_tensors_bytes_and_cache() {
    let c = read(&v4_flash()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(stored(&c), (69_187, 159_609_485_896));
    let runs = inspect::layers(&c);
    assert_eq!((runs[0].count, runs[0].attention.as_str()), (2, "window"));
    let of = |kind: &str| runs.iter().filter(|r| r.attention == kind).map(|r| r.count).sum::<usize>();
    assert_eq!((of("csa 4"), of("hca 128")), (21, 20));
    // 584 bytes an entry, 68 an index key: 21 layers of a quarter of both, 20 of a 128th.
    assert_eq!(inspect::cache(&c).per_token, 21.0 * (584.0 + 68.0) / 4.0 + 20.0 * 584.0 / 128.0);
}

#[test]
fn the_published_v41_flash_has_its_bytes_and_cache() {
    let mut json = committed("v41");
    json["quantization_config"] = json!({"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0",
        "weight_block_size": [32, 32], "activation_scheme": "dynamic", "expert_dtype": "fp4"});
    let ratios: Vec<usize> = [vec![0; 2], vec![2; 18], vec![1; 20], vec![0; 3]].concat();
    let t = &mut json["text_config"];
    for (key, value) in [
        ("vocab_size", json!(129280)),
        ("hidden_size", json!(5120)),
        ("moe_intermediate_size", json!(2304)),
        ("num_hidden_layers", json!(40)),
        ("num_attention_heads", json!(64)),
        ("head_dim", json!(512)),
        ("qk_rope_head_dim", json!(64)),
        ("q_lora_rank", json!(1280)),
        ("o_lora_rank", json!(1024)),
        ("o_groups", json!(8)),
        ("n_routed_experts", json!(384)),
        ("num_experts_per_tok", json!(6)),
        ("sliding_window", json!(128)),
        ("compress_ratios", json!(ratios)),
        ("kv_source_layer_ids", json!([2, 8, 14, 20])),
        ("index_source_layer_ids", json!([2, 8, 14, 20, 24, 28, 32, 36])),
        ("index_n_heads", json!(32)),
        ("index_head_dim", json!(128)),
        ("index_topk", json!(512)),
        ("candidate_source_layer_id", json!(20)),
        ("engram_layer_ids", json!([1, 14])),
        ("engram_num_embeddings", json!([384006168, 384016682])),
        ("engram_n_heads", json!(8)),
        ("engram_head_dim", json!(256)),
        ("dspark_noise_token_id", json!(128799)),
        ("dspark_target_layer_ids", json!([37, 38, 39])),
        ("dspark_markov_rank", json!(256)),
        ("dspark_n_routed_experts", json!(128)),
        ("dspark_num_experts_per_tok", json!(3)),
    ] {
        t[key] = value;
    }
    let c = read(&json).unwrap_or_else(|e| panic!("{e}"));
    assert!(matches!(c.family, Family::V41(_)));
    // Without the vision tower 509.3 GB are known; two of its dtypes are not, which moves the last digit only.
    let (_, bytes) = stored(&c);
    assert_eq!((bytes as f64 / 1e8).round() / 10.0, 509.3, "{bytes}");
    assert_eq!(inspect::cache(&c).per_token, 890.0);
}

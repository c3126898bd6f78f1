//! Identifiers: source names made unique among what is visible, and kept off the words C++ and the prelude own.

use std::collections::HashSet;

/// Names in scope, innermost last.
#[derive(Debug)]
pub struct Names {
    scopes: Vec<HashSet<String>>,
}

impl Default for Names {
    fn default() -> Self {
        Names { scopes: vec![HashSet::new()] }
    }
}

/// Words a source name may not become: C++ keywords, built-ins of CUDA, and what generated text declares itself.
const RESERVED: &str = " alignas alignof and asm auto bool break case catch char class const constexpr continue default \
delete do double else enum explicit export extern false final float for friend goto if inline int long mutable \
namespace new noexcept not nullptr operator or private protected public register return short signed sizeof static \
struct switch template this throw true try typedef typename union unsigned using virtual void volatile while xor \
grid_arrivals u8 i8 u16 u32 i64 u64 bf16 f16 e4m3 e5m2 e8m0 DEV ld st shared tid lane warp threadIdx blockIdx blockDim gridDim \
widen Sum Max E4m3 E5m2 E2m1 Min And Or SumBf16 SumF16 Piece min max exp log sin cos sqrt abs floor ceil round pow \
TensorMap lane_index warp_uniform elect_one async_proxy_fence l2_evict_first l2_evict_last pack_bf16 global_load ";

/// Beginnings of the prelude's functions.
const PREFIXES: [&str; 15] = [
    "ld_",
    "reduce_",
    "ldmatrix",
    "mma_",
    "widen_",
    "cp_async",
    "smem_",
    "cluster_",
    "named_barrier_",
    "mbar_",
    "tma_",
    "wgmma_",
    "registers_",
    "grid_",
    "stmatrix_",
];

/// Names that generated text declares with a number behind them.
const NUMBERED: [&str; 2] = ["lane", "group"];

impl Names {
    pub fn enter(&mut self) {
        self.scopes.push(HashSet::new());
    }
    pub fn leave(&mut self) {
        self.scopes.pop();
    }
    /// Number of open scopes.
    pub fn depth(&self) -> usize {
        self.scopes.len()
    }
    /// A new name like `wish` in the innermost scope.
    pub fn declare(&mut self, wish: &str) -> String {
        self.declare_in(self.scopes.len(), wish)
    }
    /// A new name in the scope that was innermost when [`Names::depth`] was `depth`.
    pub fn declare_in(&mut self, depth: usize, wish: &str) -> String {
        let mut base: String = wish.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if base.is_empty() || base.starts_with(|c: char| c.is_ascii_digit()) || base.starts_with("__") {
            base = format!("n{base}");
        }
        // No number at the end makes these another name.
        base = base.replace("_to_", "_into_");
        if PREFIXES.iter().any(|p| base.starts_with(p)) {
            base = format!("v_{base}");
        }
        let apart = base.ends_with(|c: char| c.is_ascii_digit()) || NUMBERED.contains(&base.as_str());
        let mut name = base.clone();
        let mut n = 1;
        while self.taken(&name) {
            n += 1;
            name = if apart { format!("{base}_{n}") } else { format!("{base}{n}") };
        }
        if let Some(s) = self.scopes.get_mut(depth - 1) {
            s.insert(name.clone());
        }
        name
    }
    fn taken(&self, name: &str) -> bool {
        let numbered = NUMBERED
            .iter()
            .any(|p| name.strip_prefix(p).is_some_and(|r| !r.is_empty() && r.chars().all(|c| c.is_ascii_digit())));
        numbered || RESERVED.contains(&format!(" {name} ")) || self.scopes.iter().any(|s| s.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source names that are, or begin like, words of the prelude become names it does not own; each twice.
    #[test]
    fn every_wish_ends_in_a_name() {
        let mut names = Names::default();
        let wishes =
            ["slot_to_pos", "ld_x", "reduce_me", "grid_size", "lane", "group", "lane7", "int", "x", "1", "__y", "é"];
        let declared: Vec<String> = wishes.iter().flat_map(|w| [names.declare(w), names.declare(w)]).collect();
        let unique: HashSet<&String> = declared.iter().collect();
        assert_eq!(unique.len(), declared.len(), "{declared:?}");
        assert_eq!(declared[..4], ["slot_into_pos", "slot_into_pos2", "v_ld_x", "v_ld_x2"]);
        for name in &declared {
            let owned = name.contains("_to_") || PREFIXES.iter().any(|p| name.starts_with(p));
            let numbered = NUMBERED.iter().any(|p| name.strip_prefix(p).is_some_and(|r| r.parse::<u32>().is_ok()));
            assert!(!owned && !numbered && !RESERVED.contains(&format!(" {name} ")), "{name}");
        }
    }
}

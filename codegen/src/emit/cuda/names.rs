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
        let mut name = base.clone();
        let mut n = 1;
        while self.taken(&name) {
            n += 1;
            name =
                if base.ends_with(|c: char| c.is_ascii_digit()) { format!("{base}_{n}") } else { format!("{base}{n}") };
        }
        if let Some(s) = self.scopes.get_mut(depth - 1) {
            s.insert(name.clone());
        }
        name
    }
    fn taken(&self, name: &str) -> bool {
        let prefixes = [
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
        let function = name.contains("_to_") || prefixes.iter().any(|p| name.starts_with(p));
        let numbered = ["lane", "group"]
            .iter()
            .any(|p| name.strip_prefix(p).is_some_and(|r| !r.is_empty() && r.chars().all(|c| c.is_ascii_digit())));
        function || numbered || RESERVED.contains(&format!(" {name} ")) || self.scopes.iter().any(|s| s.contains(name))
    }
}

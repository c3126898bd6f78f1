//! Matrix instructions of a warpgroup (compute capability 9.0a): one function a shape, printed with the kernel that uses it.
//!
//! Not the descriptors, the fence, the commit and the wait, which are the same for all shapes (`device/wgmma.cuh`). The
//! host form takes the place of the device form where emitted text runs on the simulator.

use crate::ir::DType;
use std::fmt::Write as _;

/// A matrix instruction: 64 rows by `n` columns over 32 bytes of k, accumulated in f32.
///
/// A lane of warp w of the four holds rows `16 w + lane / 4` and that plus 8; element i of its accumulator is column
/// `i / 4 * 8 + lane % 4 * 2 + i % 2` of the first row for even `i / 2`, else of the second. Fragments of A in registers are
/// those of `mma` of 16 x 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wgmma {
    n: usize,
    dtype: DType,
    registers: bool,
    across: bool,
}

impl Wgmma {
    /// Both operands in shared memory with k in their rows; `None` where there is no such instruction. `n` is a multiple of 8
    /// up to 256, the type E4m3, Bf16 or F16.
    pub fn new(n: usize, dtype: DType) -> Option<Self> {
        let known = matches!(dtype, DType::E4m3 | DType::Bf16 | DType::F16);
        (known && n.is_multiple_of(8) && (8..=256).contains(&n)).then_some(Wgmma {
            n,
            dtype,
            registers: false,
            across: false,
        })
    }
    /// The same with A in registers; 16-bit types only.
    pub fn with_registers(self) -> Option<Self> {
        (self.dtype != DType::E4m3).then_some(Wgmma { registers: true, ..self })
    }
    /// The same with k across the rows of B; 16-bit types only.
    pub fn with_k_across(self) -> Option<Self> {
        (self.dtype != DType::E4m3).then_some(Wgmma { across: true, ..self })
    }

    /// Columns.
    pub fn n(self) -> usize {
        self.n
    }
    /// Type of A and B.
    pub fn dtype(self) -> DType {
        self.dtype
    }
    /// Values of k.
    pub fn k(self) -> usize {
        if self.dtype == DType::E4m3 { 32 } else { 16 }
    }
    /// A is in registers.
    pub fn a_in_registers(self) -> bool {
        self.registers
    }
    /// K runs across the rows of B.
    pub fn k_across(self) -> bool {
        self.across
    }

    fn type_name(self) -> &'static str {
        match self.dtype {
            DType::E4m3 => "e4m3",
            DType::Bf16 => "bf16",
            _ => "f16",
        }
    }

    /// Name of the function: `wgmma_m64n128k32_e4m3`, with `_ra` for A in registers and `_bt` for k across B's rows.
    pub fn name(self) -> String {
        let (n, k, dtype) = (self.n, self.k(), self.type_name());
        let a = if self.registers { "_ra" } else { "" };
        let b = if self.across { "_bt" } else { "" };
        format!("wgmma_m64n{n}k{k}_{dtype}{a}{b}")
    }

    /// The instruction with this function name.
    pub fn parse(name: &str) -> Option<Self> {
        let digits = |s: &str| s.chars().take_while(char::is_ascii_digit).count();
        let rest = name.strip_prefix("wgmma_m64n")?;
        let n = rest[..digits(rest)].parse().ok()?;
        let dtypes = [DType::E4m3, DType::Bf16, DType::F16];
        let forms = dtypes.into_iter().filter_map(|d| Wgmma::new(n, d)).flat_map(|w| {
            let (ra, bt) = (w.with_registers(), w.with_k_across());
            [Some(w), ra, bt, ra.and_then(Wgmma::with_k_across)]
        });
        forms.flatten().find(|w| w.name() == name)
    }

    fn head(self) -> String {
        let a = if self.registers { "u32 a0, u32 a1, u32 a2, u32 a3" } else { "u64 a" };
        format!("DEV void {}(float (&d)[{}], {a}, u64 b, int add) {{\n", self.name(), self.n / 2)
    }

    /// The function for the device: `d (+)= a b`, where `add` 0 overwrites d.
    pub fn device(self) -> String {
        let (count, dtype) = (self.n / 2, self.type_name());
        let mut out = self.head();
        let a: Vec<String> = if self.registers {
            (0..4).map(|i| format!("%{}", count + i)).collect()
        } else {
            vec![format!("%{count}")]
        };
        let b = count + a.len();
        let a = if self.registers { format!("{{{}}}", a.join(", ")) } else { a.concat() };
        // Scales of A and B, then for 16-bit types whether k runs across the rows of an operand in shared memory.
        let across = self.across as u32;
        let modes = match (self.dtype, self.registers) {
            (DType::E4m3, _) => "1, 1".to_string(),
            (_, false) => format!("1, 1, 0, {across}"),
            (_, true) => format!("1, 1, {across}"),
        };
        let shape = format!("m64n{}k{}", self.n, self.k());
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "    asm volatile(\"{{\\n .reg .pred p;\\n setp.ne.b32 p, %{}, 0;\\n \"\n        \
             \"wgmma.mma_async.sync.aligned.{shape}.f32.{dtype}.{dtype} {{\"\n",
            b + 1
        );
        let rows = |item: &dyn Fn(usize) -> String, separator: &str, quote: &str| {
            let mut text = String::new();
            for first in (0..count).step_by(8) {
                let last = (first + 8).min(count);
                let items: Vec<String> = (first..last).map(item).collect();
                let comma = if last == count { "" } else { separator };
                let _ = writeln!(text, "        {quote}{}{comma}{quote}", items.join(", "));
            }
            text
        };
        out += &rows(&|i| format!("%{i}"), ", ", "\"");
        let _ = write!(out, "        \"}}, {a}, %{b}, p, {modes};\\n}}\"\n        :\n");
        out += &rows(&|i| format!("\"+f\"(d[{i}])"), ",", "");
        out.truncate(out.trim_end().len());
        let a = if self.registers { "\"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3)" } else { "\"l\"(a)" };
        let _ = write!(out, "\n        : {a}, \"l\"(b), \"r\"(add));\n}}\n");
        out
    }

    /// The function for the simulator.
    pub fn host(self) -> String {
        let format = match self.dtype {
            DType::F16 => 0,
            DType::Bf16 => 1,
            _ => 2,
        };
        let a = if self.registers { "a0 | (u64)a1 << 32, a2 | (u64)a3 << 32" } else { "a, 0" };
        let mode = format | (self.registers as u32) << 8 | (self.across as u32) << 9;
        format!("{}    kiln_wgmma(d, {}, {mode}, {a}, b, add);\n}}\n", self.head(), self.n / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for dtype in [DType::E4m3, DType::Bf16, DType::F16] {
            for n in (8..=256).step_by(8) {
                let w = Wgmma::new(n, dtype).expect("a shape");
                let forms = [Some(w), w.with_registers(), w.with_k_across()];
                for w in forms.into_iter().flatten() {
                    assert_eq!(Wgmma::parse(&w.name()), Some(w));
                }
            }
        }
        let w = Wgmma::new(128, DType::E4m3).expect("a shape");
        assert_eq!((w.name().as_str(), w.with_registers()), ("wgmma_m64n128k32_e4m3", None));
        assert_eq!(Wgmma::parse("wgmma_m64n12k32_e4m3"), None);
        assert_eq!(Wgmma::new(264, DType::Bf16), None);
        assert_eq!(Wgmma::new(64, DType::E5m2), None);
    }

    #[test]
    fn operands_are_numbered_in_order() {
        let text = Wgmma::new(8, DType::Bf16).and_then(Wgmma::with_registers).expect("a shape").device();
        for part in ["%0, %1, %2, %3", "}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;", "setp.ne.b32 p, %9, 0;", "\"l\"(b)"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}

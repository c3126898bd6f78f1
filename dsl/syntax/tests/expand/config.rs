//! Input of a golden expansion.

#[derive(KernelConfig)]
struct Cfg {
    /// Rows a block.
    #[tune(1, 2)]
    rows: usize,
    #[numerics]
    #[default(128)]
    group: usize,
    fast: bool,
}

//! Emitters: scheduled IR to source text. Straight printing, no analysis, no I/O; same input, same bytes.

pub mod ascend;
pub mod cuda;

use crate::abi::Signature;

/// Generated source of one kernel, and how it is launched.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The text.
    pub text: String,
    /// Entry point and its arguments.
    pub signature: Signature,
    /// Threads of a block.
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: usize,
    /// Blocks of a cluster along each axis; all 1 means no clusters.
    pub cluster: [u32; 3],
    /// All its blocks run at the same time, since they wait for each other.
    pub cooperative: bool,
    /// It may start before the launch ahead of it has ended: the text itself waits where it needs that one's results.
    pub dependent_launch: bool,
    /// How many blocks are launched.
    pub grid: GridPlan,
    /// What a launch on cube and vector cores needs besides; `None` on targets with threads.
    pub npu: Option<NpuLaunch>,
}

/// Which cores of a group run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NpuCores {
    /// Vector cores, each a block of its own.
    Vector,
    /// A cube core with its two vector cores is a block.
    Mixed,
}

/// How text for cube and vector cores is built and launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpuLaunch {
    /// Instruction set: `--npu-arch=dav-{arch}` of the vendor's compiler, `__NPU_ARCH__` in the text.
    pub arch: u32,
    /// Cores of a block.
    pub cores: NpuCores,
    /// Bytes of [`crate::abi::SigArg::Workspace`] for each launched block; 0 if the entry takes none.
    pub workspace_bytes: usize,
}

impl NpuLaunch {
    /// Options of the vendor's compiler for a shared library. The text sets every flag itself, so the compiler adds none.
    pub fn build_options(&self) -> Vec<String> {
        let arch = format!("--npu-arch=dav-{}", self.arch);
        ["-x", "asc", &arch, "-O2", "-std=c++17", "--cce-auto-sync=off", "-shared", "-fPIC"].map(String::from).into()
    }
}

/// How many blocks are launched for a kernel's grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridPlan {
    /// The kernel's grid, each axis rounded up to whole clusters; the text leaves the excess blocks idle.
    #[default]
    Blocks,
    /// As many clusters (blocks, without clusters) as the device holds at a time, or as there is work for; each takes unit
    /// after unit of the kernel's grid. Launched as `[clusters * cluster[0], cluster[1], cluster[2]]`.
    Persistent {
        /// Blocks of the kernel's grid along each axis that a cluster does at a time.
        unit: [u32; 3],
    },
}

impl Source {
    /// Blocks of a cluster.
    pub fn cluster_blocks(&self) -> usize {
        self.cluster.iter().map(|&n| n.max(1) as usize).product()
    }

    /// The launch depends on how many clusters a device holds.
    pub fn is_persistent(&self) -> bool {
        matches!(self.grid, GridPlan::Persistent { .. })
    }

    /// Blocks to launch along each axis for a kernel's grid, where `resident` clusters (blocks, without clusters) fit on the
    /// device at a time; that number only matters if the plan [is persistent](Source::is_persistent).
    pub fn launch_blocks(&self, grid: &[i64], resident: usize) -> [i64; 3] {
        let extent = |axis: usize| grid.get(axis).copied().unwrap_or(1).max(0);
        let cluster = self.cluster.map(|n| i64::from(n.max(1)));
        let units = |axis: usize, by: i64| extent(axis) / by + i64::from(extent(axis) % by > 0);
        match self.grid {
            GridPlan::Blocks => [0, 1, 2].map(|axis| units(axis, cluster[axis]).saturating_mul(cluster[axis])),
            GridPlan::Persistent { unit } => {
                let work = (0..3).fold(1i64, |n, axis| n.saturating_mul(units(axis, i64::from(unit[axis].max(1)))));
                let clusters = work.min(i64::try_from(resident.max(1)).unwrap_or(i64::MAX));
                [clusters.saturating_mul(cluster[0]), cluster[1], cluster[2]]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(cluster: [u32; 3], grid: GridPlan) -> Source {
        let signature = Signature { entry: "k".into(), args: vec![] };
        Source {
            text: String::new(),
            signature,
            threads: 128,
            shared_bytes: 0,
            cluster,
            cooperative: false,
            dependent_launch: false,
            grid,
            npu: None,
        }
    }

    #[test]
    fn own_grids_are_whole_clusters() {
        let blocks = |cluster, grid: &[i64]| source(cluster, GridPlan::Blocks).launch_blocks(grid, 1);
        assert_eq!(blocks([1, 1, 1], &[7, 5]), [7, 5, 1]);
        assert_eq!(blocks([2, 1, 1], &[7, 5]), [8, 5, 1]);
        assert_eq!(blocks([2, 4, 1], &[8, 5, 3]), [8, 8, 3]);
        assert_eq!(blocks([2, 1, 1], &[0, 5]), [0, 5, 1]);
    }

    #[test]
    fn persistent_grids_are_what_is_resident_or_needed() {
        let blocks = |cluster, unit, grid: &[i64], resident| {
            source(cluster, GridPlan::Persistent { unit }).launch_blocks(grid, resident)
        };
        assert_eq!(blocks([1, 1, 1], [1, 1, 1], &[40, 10], 132), [132, 1, 1]);
        assert_eq!(blocks([1, 1, 1], [1, 1, 1], &[4, 10], 132), [40, 1, 1]);
        // Pairs along axis 0: 20 of 21 rows make 10 pairs, the last row one more.
        assert_eq!(blocks([2, 1, 1], [2, 1, 1], &[21, 3], 66), [66, 1, 1]);
        assert_eq!(blocks([2, 1, 1], [2, 1, 1], &[40, 10], 66), [132, 1, 1]);
        // Two blocks share one tile.
        assert_eq!(blocks([2, 1, 1], [1, 1, 1], &[3], 66), [6, 1, 1]);
        assert_eq!(blocks([1, 1, 1], [1, 1, 1], &[0, 3], 132), [0, 1, 1]);
        assert_eq!(blocks([1, 1, 1], [1, 1, 1], &[5], 0), [1, 1, 1], "something has to run");
    }
}

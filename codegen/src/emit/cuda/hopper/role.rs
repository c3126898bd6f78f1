//! Heads of roles, barriers of a role, and the walk of a persistent block over its tiles.

use super::super::Emitter;
use super::super::expr::Text;
use super::super::prelude::Snippet;
use super::Current;
use crate::ir::{Base, BlockId, BufferId, DType, GroupRows, IxVarId, OpId, RoleId};

/// Tiles along the first axis that are walked together where the kernel does not say: with tiles of 128 to 256 rows and
/// columns, as many as make the tiles in flight on a device near square.
const PANEL: usize = 8;
/// Registers a block's threads share.
const REGISTERS: usize = 65536;

impl Emitter<'_> {
    /// Programs side by side.
    pub fn roles(&mut self, op: OpId, programs: &[(RoleId, BlockId)]) {
        for (n, &(role, body)) in programs.iter().enumerate() {
            self.role_program(op, role, body, [n, programs.len()]);
        }
        if !programs.is_empty() {
            self.close();
        }
    }

    fn role_program(&mut self, op: OpId, id: RoleId, body: BlockId, [number, of]: [usize; 2]) {
        let r = self.k.roles[id.0 as usize].clone();
        let (first, end) = (r.first_warp, r.first_warp + r.warps * r.instances);
        let warp = self.frame.block_warp.clone();
        let condition = match (first, end == self.k.warps) {
            (0, _) => format!("{warp} < {end}"),
            (_, true) => format!("{warp} >= {first}"),
            _ => format!("{warp} >= {first} && {warp} < {end}"),
        };
        let head =
            if number + 1 == of && number > 0 && self.covers() { String::new() } else { format!("if ({condition})") };
        if number == 0 {
            self.open(&head);
        } else {
            self.names.leave();
            self.depth -= 1;
            let head = if head.is_empty() { head } else { format!(" {head}") };
            self.line(format!("}} else{head} {{"));
            self.depth += 1;
            self.names.enter();
        }
        let many = if r.instances > 1 { format!("{} of ", r.instances) } else { String::new() };
        let plural = if r.warps > 1 { "warps" } else { "warp" };
        self.line(format!("// ======== {}: {many}{} {plural} ========", r.name, r.warps));
        if let Some(registers) = r.registers {
            self.need(Snippet::Registers);
            let given = REGISTERS / self.block_threads() / 8 * 8;
            let verb = if registers > given { "grow" } else { "shrink" };
            self.line(format!("registers_{verb}<{registers}>();"));
        }

        // The constants of the role's threads go here once it is known which are used.
        let start = self.out.len();
        let outer = (
            std::mem::take(&mut self.used_tid),
            std::mem::take(&mut self.used_warp),
            std::mem::take(&mut self.used_lanes),
        );
        self.role = Some(Current { id, threads: r.warps * 32, one_thread: r.one_thread });
        if let Some(v) = r.instance {
            let name = self.names.declare(&self.k.ix_var(v).name.clone());
            self.index.insert(v, Text::name(name));
        }
        if r.one_thread {
            let from = if r.instances > 1 {
                format!("({warp} - {first}) % {} == 0", r.warps)
            } else {
                format!("{warp} == {first}")
            };
            self.open(&format!("if ({from} && elect_one())"));
        }
        self.ring_positions(id);
        self.block(body);
        let all_threads = ["__syncthreads", "reduce_warps", "grid_sync"];
        if all_threads.iter().any(|f| self.out[start..].contains(f)) {
            self.refuse(op, "a step that needs all threads of a block, inside a role".into());
        }
        let constants = self.role_constants(id);
        let depth = if r.one_thread { self.depth - 1 } else { self.depth };
        let indent = "    ".repeat(depth);
        let text: String = constants.iter().map(|c| format!("{indent}{c}\n")).collect();
        self.out.insert_str(start, &text);
        self.drop_unused(start);
        if r.one_thread {
            self.close();
            self.line("__syncwarp();");
        }
        self.role = None;
        (self.used_tid, self.used_warp, self.used_lanes) = outer;
    }

    /// True if every warp of the block belongs to a role.
    fn covers(&self) -> bool {
        let warps: usize = self.k.roles.iter().map(|r| r.warps * r.instances).sum();
        warps == self.k.warps
    }

    /// Threads of the block.
    pub fn block_threads(&self) -> usize {
        self.k.warps * 32
    }

    /// Numbers of a thread within its role.
    fn role_constants(&mut self, id: RoleId) -> Vec<String> {
        let r = &self.k.roles[id.0 as usize];
        let warp = self.frame.block_warp.clone();
        let own = if r.first_warp > 0 { format!("({warp} - {})", r.first_warp) } else { warp.clone() };
        let mut list = vec![];
        if let Some(v) = r.instance {
            let name = self.index[&v].s.clone();
            list.push(format!("const int {name} = {own} / {};", r.warps));
        }
        let bare = own.trim_start_matches('(').trim_end_matches(')').to_string();
        list.push(match r.instances {
            1 => format!("const int warp = {bare};"),
            _ => format!("const int warp = {own} % {};", r.warps),
        });
        list.push("const int lane = threadIdx.x % 32;".into());
        list.push(match r.warps {
            1 => "const int tid = lane;".into(),
            _ => "const int tid = warp * 32 + lane;".into(),
        });
        for &n in &self.used_lanes {
            list.push(format!("const int lane{n} = tid % {n};"));
            list.push(format!("const int group{n} = tid / {n};"));
        }
        list
    }

    /// All threads of the role's instance meet.
    pub fn role_barrier(&mut self, reason: &str) {
        match self.role {
            None => self.line(format!("__syncthreads();  // {reason}")),
            Some(c) if c.one_thread => {}
            Some(c) if c.threads == 32 => self.line(format!("__syncwarp();  // {reason}")),
            Some(c) => {
                self.need(Snippet::NamedBarrier);
                let before = self.k.roles[..c.id.0 as usize].iter().filter(|r| !r.one_thread && r.warps > 1);
                let first: usize = 1 + before.map(|r| r.instances).sum::<usize>();
                let id = match self.k.roles[c.id.0 as usize].instance {
                    Some(v) => format!("{first} + {}", self.index[&v].s),
                    None => first.to_string(),
                };
                self.line(format!("named_barrier_sync({id}, {});  // {reason}", c.threads));
            }
        }
    }

    /// The walk over the tiles of this block.
    pub fn tiles(&mut self, id: OpId, vars: &[IxVarId], rows: Option<GroupRows>, body: BlockId) {
        let Some(walk) = self.frame.walk.clone() else { return };
        let k = self.k;
        self.comment(k.op(id).span, "tiles of this block");
        let size = self.cluster_size();
        let own = |what: &str| if size > 1 { format!("{what} / {size}") } else { what.to_string() };
        let (first, step) = (own("blockIdx.x"), own("gridDim.x"));
        let places = match rows {
            None => {
                self.line("#pragma unroll 1");
                let head = |u: &str| format!("for (u32 {u} = {first}; {u} < {}; {u} += {step})", walk.units);
                let unit = self.open_with("unit", head).s;
                self.unit_places(&unit, &walk.axes)
            }
            Some(rows) => {
                let Some(places) = self.group_walk(&rows, &walk.axes, &first, &step) else {
                    self.refuse(id, "a walk over the rows of groups without a grid of three axes".into());
                    return;
                };
                places
            }
        };
        let ty = self.index_type();
        for (axis, (&var, place)) in vars.iter().zip(places).enumerate() {
            let name = self.names.declare(&k.ix_var(var).name.clone());
            let shared = k.cluster.as_ref().filter(|c| c.axis == Some(axis) && c.size > 1);
            let text = match shared {
                Some(c) => {
                    let rank = self.index.get(&c.rank).map(|t| t.s.clone()).unwrap_or_default();
                    format!("({ty})({place}) * {} + {rank}", c.size)
                }
                None => format!("({ty})({place})"),
            };
            self.line(format!("const {ty} {name} = {text};"));
            self.index.insert(var, Text::name(name));
        }
        self.block(body);
        self.close();
    }

    /// The walk over tiles that have rows, group after group: how many there are is read while walking, and the place where
    /// a group begins only grows.
    fn group_walk(&mut self, rows: &GroupRows, axes: &[String], first: &str, step: &str) -> Option<Vec<String>> {
        let [tiles, columns, groups] = axes else { return None };
        let (tiles, columns, groups) = (tiles.clone(), columns.clone(), groups.clone());
        let (group, begin) = (self.names.declare("group"), self.names.declare("begin"));
        self.line(format!("u32 {group} = 0, {begin} = 0;  // of the group's first unit"));
        self.line("#pragma unroll 1");
        let unit = self.open_with("unit", |u| format!("for (u32 {u} = {first};; {u} += {step})")).s;
        let here = self.names.declare("tiles_here");
        self.line(format!("u32 {here} = 0;"));
        self.open(&format!("for (; {group} < {groups}; ++{group})"));
        let count = self.group_count(rows, &group)?;
        self.need(Snippet::MinMax);
        let whole = format!("u32(max_of<int>({count}, 0) + {}) / {}", rows.tile - 1, rows.tile);
        self.line(format!("{here} = min_of<u32>({whole}, {tiles});"));
        self.line(format!("if ({unit} < {begin} + {here} * {columns}) break;"));
        self.line(format!("{begin} += {here} * {columns};"));
        self.close();
        self.line(format!("if ({group} == {groups}) break;"));
        let at = self.names.declare("in_group");
        self.line(format!("const u32 {at} = {unit} - {begin};"));
        let mut places = self.unit_places(&at, &[here, columns]);
        places.push(group);
        Some(places)
    }

    /// The rows of a group.
    fn group_count(&mut self, rows: &GroupRows, group: &str) -> Option<String> {
        let v = self.k.view(rows.counts);
        let Base::Param(p) = v.base else { return None };
        let plain = self.k.ix_const(v.offset) == Some(0) && self.k.ix_const(v.strides[0]) == Some(1);
        if !plain || v.dtype != DType::I32 || !v.guards.is_empty() || v.gather.is_some() {
            return None;
        }
        Some(format!("{}[{group}]", self.param(p)))
    }

    /// Place of a unit along each axis: in panels along axis 0, axis 0 fastest inside a panel; a third axis is slowest.
    fn unit_places(&mut self, unit: &str, axes: &[String]) -> Vec<String> {
        let [rows, columns, rest @ ..] = axes else { return vec![unit.to_string()] };
        let mut places = vec![];
        let mut flat = unit.to_string();
        if !rest.is_empty() {
            let slow = self.names.declare("slow");
            self.line(format!("const u32 {slow} = {unit} / ({rows} * {columns});"));
            flat = self.names.declare("in_plane");
            self.line(format!("const u32 {flat} = {unit} % ({rows} * {columns});"));
            places.push(slow);
        }
        let panel = self.k.raster.unwrap_or(PANEL).max(1);
        if panel == 1 {
            places.insert(0, format!("{flat} / {columns}"));
            places.insert(1, format!("{flat} % {columns}"));
            return places;
        }
        let (p, within) = (self.names.declare("panel"), self.names.declare("in_panel"));
        let height = self.names.declare("panel_rows");
        self.need(Snippet::MinMax);
        self.line(format!(
            "const u32 {p} = {flat} / ({panel} * {columns}), {within} = {flat} % ({panel} * {columns});"
        ));
        self.line(format!("const u32 {height} = min_of<u32>({panel}, {rows} - {panel} * {p});"));
        places.insert(0, format!("{panel} * {p} + {within} % {height}"));
        places.insert(1, format!("{within} / {height}"));
        places
    }

    /// Declares the pointer of a shared tile at the start of the block.
    pub fn shared_pointer(&mut self, buffer: BufferId) {
        let b = self.k.buffer(buffer);
        let Some(m) = &b.memory else { return };
        let ty = super::super::expr::memory_type(b.dtype);
        let at = Text::offset("shared", &Text::number(m.offset_bytes as i64));
        let at = if at == "shared" { at } else { format!("({at})") };
        let name = self.buffer(buffer);
        self.line(format!("{ty}* const {name} = ({ty}*){at};"));
    }
}

//! The GPUs that the system offers, and which of them is meant. `device` opens one.

use limpid_base::contain::contain;
use limpid_core::backend::{BackendError, Result};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::str::FromStr;
use std::task::{Context, Poll, Waker};
use std::thread;

/// Bytes of the numbers that a kernel is given with each dispatch; every API has room for as many.
pub const WORDS: u32 = 128;
/// The most bindings of a kernel, which WebGPU promises.
pub const BINDINGS: usize = 8;
/// Bytes of whose multiples bindings begin, which WebGPU promises.
pub const ALIGN: u64 = 256;

/// A GPU that the system offers.
#[derive(Clone, Debug)]
pub struct GpuAdapter {
    /// What its maker calls it.
    pub name: String,
    /// Its driver, with its version.
    pub driver: String,
    /// How it is reached: vulkan, metal, dx12.
    pub api: String,
    /// Whether this processor emulates it.
    pub is_software: bool,
    /// Bytes that one buffer may have.
    pub buffer_bytes: u64,
    /// Bytes that a kernel may see of one buffer.
    pub binding_bytes: u64,
    /// Lanes that its hardware runs together, at least and at most.
    pub subgroup: [u32; 2],
    /// Its matrices of f16 with sums in f32, if it has such.
    pub matrices: Option<GpuMatrices>,
    pub(crate) rank: u8,
}

/// Square matrices that a subgroup multiplies at once (tensor cores, WMMA, SIMD-group matrices), and how `product_f16`
/// uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GpuMatrices {
    /// Rows and columns.
    pub side: u32,
    /// Lanes of a workgroup: four subgroups, if these are as large as they may be.
    pub lanes: u32,
}

impl GpuMatrices {
    /// Bytes that a workgroup shares: two tiles, and a matrix of each subgroup.
    pub(crate) const SHARED: u32 = 32 << 10;
    /// What an adapter must offer.
    pub(crate) const FEATURES: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        .union(wgpu::Features::SHADER_F16)
        .union(wgpu::Features::SUBGROUP);

    /// The largest of an adapter's.
    fn largest(adapter: &wgpu::Adapter) -> Option<GpuMatrices> {
        use wgpu::CooperativeScalarType::{F16, F32};
        if !adapter.features().contains(GpuMatrices::FEATURES) {
            return None;
        }
        let all = adapter.cooperative_matrix_properties();
        let square = all.iter().filter(|of| of.m_size == of.n_size && of.n_size == of.k_size);
        let side = square.filter(|of| (of.ab_type, of.cr_type) == (F16, F32)).map(|of| of.m_size).max()?;
        let lanes = 4 * adapter.get_info().subgroup_max_size;
        let shared = adapter.limits().max_compute_workgroup_storage_size;
        let fits = lanes <= 256 && lanes.is_multiple_of(2 * side) && shared >= GpuMatrices::SHARED;
        fits.then_some(GpuMatrices { side, lanes })
    }

    /// The side of what a workgroup makes whose subgroups make so many rows of matrices (`WIDE` of linear_f16.wgsl).
    pub fn tile(self, rows: usize) -> usize {
        2 * rows * self.side as usize
    }
}

impl GpuAdapter {
    /// One with limits that many have, where there is none.
    pub fn common() -> GpuAdapter {
        GpuAdapter {
            name: "a GPU of which a kernel sees 2.1 GB at once".into(),
            driver: "none is here".into(),
            api: "imagined".into(),
            is_software: false,
            buffer_bytes: 2 << 30,
            binding_bytes: 2 << 30,
            subgroup: [32, 32],
            matrices: None,
            rank: 0,
        }
    }

    /// Whether its memory is a part of the system's.
    pub fn shares_memory(&self) -> bool {
        self.rank == 1 || self.is_software
    }
}

impl fmt::Display for GpuAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.api, self.driver)
    }
}

/// Which GPU.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum GpuChoice {
    /// The first real one of the list; a software one if there is no other.
    #[default]
    Best,
    /// The one of this place in the list, from 0.
    Number(usize),
    /// The one whose name has this in it, in small letters or large ones.
    Name(String),
}

impl FromStr for GpuChoice {
    type Err = Infallible;
    /// `` (the best), `N` or a part of a name.
    fn from_str(text: &str) -> std::result::Result<GpuChoice, Infallible> {
        Ok(match text.parse() {
            _ if text.is_empty() => GpuChoice::Best,
            Ok(number) => GpuChoice::Number(number),
            Err(_) => GpuChoice::Name(text.into()),
        })
    }
}

/// The adapters of the system, real ones first.
///
/// # Errors
/// If the system's drivers fail.
pub fn adapters() -> Result<Vec<GpuAdapter>> {
    Ok(all()?.iter().map(described).collect())
}

pub(crate) fn all() -> Result<Vec<wgpu::Adapter>> {
    let mut found = listed(wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12)?;
    found.sort_by_key(|adapter| described(adapter).rank);
    Ok(found)
}

pub(crate) fn listed(backends: wgpu::Backends) -> Result<Vec<wgpu::Adapter>> {
    let backend_options = wgpu::BackendOptions {
        noop: wgpu::NoopBackendOptions { enable: backends == wgpu::Backends::NOOP, ..Default::default() },
        ..Default::default()
    };
    let found = contain(|| {
        let how = wgpu::InstanceDescriptor {
            backends,
            flags: wgpu::InstanceFlags::empty(),
            backend_options,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        };
        wait(wgpu::Instance::new(how).enumerate_adapters(backends))
    });
    found.map_err(no_gpu)
}

/// The error of a GPU that is not there or cannot be used.
pub(crate) fn no_gpu(what: String) -> BackendError {
    BackendError::NotSupported { op: "gpu", what, settings: &["device cpu"] }
}

pub(crate) fn described(adapter: &wgpu::Adapter) -> GpuAdapter {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let rank = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => 2,
        wgpu::DeviceType::Cpu => 3,
    };
    GpuAdapter {
        is_software: rank == 3,
        driver: format!("{} {}", info.driver, info.driver_info).trim().into(),
        api: info.backend.to_string(),
        buffer_bytes: limits.max_buffer_size,
        binding_bytes: limits.max_storage_buffer_binding_size.min(1 << 32), // places in it are numbers of 32 bits
        subgroup: [info.subgroup_min_size, info.subgroup_max_size],
        matrices: GpuMatrices::largest(adapter),
        name: info.name,
        rank,
    }
}

/// The place of the GPU that is meant, or why there is none.
pub(crate) fn pick(choice: &GpuChoice, all: &[GpuAdapter]) -> std::result::Result<usize, String> {
    let list = || match all {
        [] => "the system has no GPU with Vulkan, Metal or Direct3D 12, or no driver of one".into(),
        _ => all.iter().enumerate().map(|(i, a)| format!("{i}: {a}")).collect::<Vec<_>>().join("; "),
    };
    let name = match choice {
        GpuChoice::Best => String::new(),
        GpuChoice::Number(n) if *n < all.len() => return Ok(*n),
        GpuChoice::Number(n) => n.to_string(), // of a name, such as 4090
        GpuChoice::Name(name) => name.to_lowercase(),
    };
    // a number of a name is a whole one, and no place in a list
    let numbered = matches!(choice, GpuChoice::Number(_));
    let named = |all: &str| {
        if numbered {
            name.len() > 2 && all.split(|c: char| !c.is_ascii_digit()).any(|number| number == name)
        } else {
            all.contains(&name)
        }
    };
    let places: Vec<usize> = (0..all.len()).filter(|place| named(&all[*place].name.to_lowercase())).collect();
    // one GPU that is reached in several ways is one
    let same = |a: &usize, b: &usize| all[*a].name == all[*b].name && all[*a].api != all[*b].api;
    match places[..] {
        [] => Err(format!("there is no such GPU: {}", list())),
        [place, ..] if *choice == GpuChoice::Best || places[1..].iter().all(|other| same(&place, other)) => Ok(place),
        _ => Err(format!("several GPUs have that name; choose one by its number: {}", list())),
    }
}

/// What a GPU has too little of for the kernels.
pub(crate) fn lacks(own: &wgpu::Limits) -> Option<String> {
    let needs = [
        ("buffers for a kernel", own.max_storage_buffers_per_shader_stage, BINDINGS as u32),
        ("bytes that a workgroup shares", own.max_compute_workgroup_storage_size, 16 << 10),
        ("lanes of a workgroup", own.max_compute_invocations_per_workgroup.min(own.max_compute_workgroup_size_x), 256),
        ("workgroups in a row", own.max_compute_workgroups_per_dimension, 65_535),
        ("bytes of immediate data", own.max_immediate_size, WORDS),
    ];
    let (what, has, needed) = needs.into_iter().find(|(_, has, needed)| has < needed)?;
    Some(format!("has {has} {what}, and kernels need {needed}"))
}

/// The result of a future that is ready as soon as it is asked, as wgpu's are outside of browsers.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::yield_now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gpu_lacks_is_told() {
        let full = wgpu::Limits { max_immediate_size: WORDS, ..wgpu::Limits::default() };
        assert_eq!(lacks(&full), None);
        let few = wgpu::Limits { max_storage_buffers_per_shader_stage: 4, ..full.clone() };
        assert_eq!(lacks(&few).unwrap(), "has 4 buffers for a kernel, and kernels need 8");
        let narrow = wgpu::Limits { max_compute_workgroup_size_x: 128, ..full };
        assert_eq!(lacks(&narrow).unwrap(), "has 128 lanes of a workgroup, and kernels need 256");
    }

    /// By number, by a part of the name, also if that is a number; one GPU under two APIs is one, two of one name are
    /// told apart by their numbers.
    #[test]
    fn a_gpu_is_picked_by_number_or_name() {
        let one = |name: &str, api: &str| GpuAdapter {
            name: name.into(),
            driver: "1.0".into(),
            api: api.into(),
            is_software: false,
            buffer_bytes: 0,
            binding_bytes: 0,
            subgroup: [32, 32],
            matrices: None,
            rank: 0,
        };
        let all = [
            one("GeForce RTX 4090", "vulkan"),
            one("Radeon 780M", "vulkan"),
            one("GeForce RTX 4090", "dx12"),
            one("Arc A770", "vulkan"),
            one("Arc A770", "vulkan"),
        ];
        let picked = |text: &str| pick(&text.parse().unwrap(), &all);
        assert_eq!(["", "1", "radeon", "4090", "geforce", "4"].map(picked), [0, 1, 1, 0, 0, 4].map(Ok));
        let told = |text: &str, what: &[&str]| {
            let error = picked(text).unwrap_err();
            assert!(what.iter().all(|what| error.contains(what)), "{text}: {error}");
        };
        told("arc", &["several GPUs have that name", "3: Arc A770", "4: Arc A770"]);
        told("a", &["several GPUs"]);
        for number in ["5", "9", "40", "409", "90"] {
            told(number, &["there is no such GPU", "0: GeForce"]);
        }
        assert_eq!(picked("770"), Err(picked("arc").unwrap_err()), "A770 is a name with a number");
        told("voodoo", &["there is no such GPU"]);
        assert!(pick(&GpuChoice::Best, &[]).unwrap_err().contains("no GPU with Vulkan"));
    }
}

//! The device of all tests. On a machine without a GPU a software one does (Mesa's lavapipe); without any, the tests
//! say so and pass, or fail where `GPU_REQUIRED` is set.

use limpid_gpu::{GpuChoice, GpuDevice};
use std::sync::{Arc, OnceLock};

/// It, or `None` and a word where there is none.
pub fn device() -> Option<Arc<GpuDevice>> {
    static DEVICE: OnceLock<Option<Arc<GpuDevice>>> = OnceLock::new();
    let open = || match GpuDevice::open(&GpuChoice::Best) {
        Ok(device) => {
            println!("on {}, f16: {:?}", device.adapter, device.adapter.matrices);
            Some(device)
        }
        Err(error) => {
            assert!(std::env::var_os("GPU_REQUIRED").is_none(), "{error}");
            println!("not tested: {error}");
            None
        }
    };
    DEVICE.get_or_init(open).clone()
}

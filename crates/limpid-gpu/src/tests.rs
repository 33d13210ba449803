//! What no checked program asks for, run by itself: rows that are gathered are those of decoding, which has no
//! gradients.

use super::*;
use crate::kernels::{self, Variant};
use crate::lists::words;
use crate::passes::SHARE;
use limpid_core::config::Config;
use limpid_core::kernels::gather;
use limpid_core::ops::{ActiveRows, Back, Grad};

/// Workgroups fill a rectangle where they are many, and there may be more of them than a list has work: those write
/// nothing, neither behind the output nor into its last element.
#[test]
fn workgroups_beyond_a_list_write_nothing() {
    let Some(device) = crate::test_device::device() else { return };
    let mut bindings = Bindings::default();
    let filled = |values: &[f32]| Window::filled(&device, "test", values).unwrap();
    let read = |window: &Window, len: usize| window.first(&device, "test", len).unwrap();
    let (m, n, k) = (3usize, 5usize, 7usize);
    let [a, b] = [m * k, n * k].map(|len| filled(&vec![1.0; len]));
    let words = words![m, n, k, k, k, n, 0u32, 0u32, 0u32, 0u32, 64u32, m * n, 1f32, 1f32];
    let across = [false, true];
    let tiles = [4, 8].map(|rows| (&kernels::PRODUCT, Variant { across, rows, ..Variant::default() }));
    let f16 = |rows| {
        (&kernels::PRODUCT_F16, Variant { across, rows, matrices: device.adapter.matrices, ..Variant::default() })
    };
    let matrices = [1, 4].map(f16).into_iter().filter(|(_, how)| how.matrices.is_some());
    for (kernel, how) in tiles.into_iter().chain(matrices) {
        let c = filled(&[9.0; 200]);
        let mut list = List::new(&device, &mut bindings);
        list.run(kernel, how, &[Some(&a), Some(&b), None, Some(&c)], words, 9).unwrap();
        list.submit("test").unwrap();
        let got = read(&c, 200);
        assert_eq!(got[..m * n], [k as f32; 15], "{}", kernel.entry);
        assert_eq!(got[m * n..], [9.0; 185], "{} behind its output", kernel.entry);
    }
    // a list of more workgroups than a row of the rectangle has
    let len = SHARE * ((1 << 15) + 3) - 5;
    let x = filled(&vec![1.5; len + 64]);
    let mut list = List::new(&device, &mut bindings);
    let y = Window::new(&x.buffer, 0..len);
    let words = words![len, false, 2f32, 0f32];
    list.run(&kernels::SCALE, Variant::default(), &[Some(&y), Some(&y)], words, len.div_ceil(SHARE)).unwrap();
    list.submit("test").unwrap();
    let got = read(&x, len + 64);
    assert!(got[..len].iter().all(|v| *v == 3.0), "all are twice what they were");
    assert!(got[len..].iter().all(|v| *v == 1.5), "behind the output");
}

/// A device that computes an op wrongly does not train, and the op is named.
#[test]
fn a_device_that_computes_wrongly_is_refused() {
    if crate::test_device::device().is_none() {
        return;
    }
    let device = GpuDevice::open(&GpuChoice::Best).unwrap();
    device.replace((&kernels::ADD_BACK, Variant::default()), &kernels::MULTIPLY);
    let refused = device.proven().unwrap_err().to_string();
    assert!(
        refused.contains("computes wrong results in add backward") && refused.contains("`limpid doctor`"),
        "{refused}"
    );
}

/// The gradient of each gathered row goes to the row that it was copied from, also to one that was copied twice; to be
/// added, or to replace what is there.
#[test]
fn gathered_rows_give_their_gradients_back() {
    let Some(device) = crate::test_device::device() else { return };
    for (rows, cols) in [(1, 1), (5, 63), (5, 64), (7, 65), (3, 255), (3, 257)] {
        let config = Config { d_model: 64, n_head: 1, n_layer: 1, d_ff: 256, ..Config::preset("nano").unwrap() };
        let model = Model::new(&config, Mode::Train { batch: 1, context: 8 }).unwrap();
        let mut draft = model.program.draft();
        draft.limits.outputs = rows;
        for space in [MemorySpace::Act, MemorySpace::ActGrad] {
            draft.sizes[space as usize] = draft.sizes[space as usize].max(8192);
        }
        let model = model.with_program(draft).unwrap();
        let mut gpu = Gpu::start(&device, &model).unwrap();
        let region = |space, at, active| Region { space, at, rows, cols, active };
        let x = region(MemorySpace::Act, 0, ActiveRows::Rows);
        let y = region(MemorySpace::Act, 4096, ActiveRows::Outputs);
        let [dx, dy] = [x, y].map(|region| region.in_space(MemorySpace::ActGrad));
        for outputs in [vec![], vec![rows as u32 - 1], (0..rows as u32).rev().collect(), vec![0; rows]] {
            let mut batch = Batch::of_sequences(vec![0; rows], vec![], rows);
            batch.outputs = outputs;
            gpu.feed(&batch).unwrap();
            // whole numbers: their sums are exact in every order
            let numbers =
                |add: usize| (0..rows * cols).map(|i| ((i * 7 + add) % 101) as f32 - 50.0).collect::<Vec<_>>();
            for add in [false, true] {
                gpu.write(dy, &numbers(3)).unwrap();
                gpu.write(dx, &numbers(5)).unwrap();
                let dx = Some(Grad { region: dx, add });
                let back = Back { index: 0, op: Op::Gather { x, y }, dy: Some(dy), dx: [dx, None], watched: [None; 3] };
                gpu.run("test", |memory, list| memory.backward(list, back.for_batch(&batch))).unwrap();
                let mut want = numbers(5);
                gather::backward(&mut want, add, &numbers(3), &batch.outputs, cols);
                assert_eq!(
                    gpu.read(x.in_space(MemorySpace::ActGrad)).unwrap(),
                    want,
                    "{rows} x {cols}, {:?}, {add}",
                    batch.outputs
                );
            }
        }
    }
}

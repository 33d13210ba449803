//! What no checked program asks for, run by itself: rows that are gathered are those of decoding, which has no gradients.

use super::*;
use limpid_core::config::Config;
use limpid_core::ops::program::Program;
use limpid_core::ops::{ActiveRows, Back, Grad, gather};

/// The gradient of each gathered row goes to the row that it was copied from, also to one that was copied twice; to be added, or to
/// replace what is there.
#[test]
fn gathered_rows_give_their_gradients_back() {
    let Ok(device) = GpuDevice::open(&GpuChoice::Best) else { return };
    for (rows, cols) in [(1, 1), (5, 63), (5, 64), (7, 65), (3, 255), (3, 257)] {
        let config = Config { d_model: 64, n_head: 1, n_layer: 1, d_ff: 256, ..Config::preset("nano").unwrap() };
        let mut model = Model::new(&config, Mode::Train { batch: 1, context: 8 }).unwrap();
        let mut draft = model.program.draft();
        draft.limits.outputs = rows;
        for space in [MemorySpace::Act, MemorySpace::ActGrad] {
            draft.sizes[space as usize] = draft.sizes[space as usize].max(8192);
        }
        model.program = Program::new(draft).unwrap();
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
                gpu.run("test", |memory, list| memory.backward(list, back.of(&batch))).unwrap();
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

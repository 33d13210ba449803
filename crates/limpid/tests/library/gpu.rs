//! A whole model on a GPU: what it writes, scores and shows is what the processor's does, to rounding; where the GPU is
//! lost, the next call begins anew. Needs the feature `gpu`. Without a GPU, real or in software, it says so and passes,
//! or fails where `GPU_REQUIRED` is set.

use crate::common::folder::Folder;
use limpid::data::source::TextSource;
use limpid::embed::Pooling;
use limpid::engine::{EngineEvent, EngineLimits, EngineRequest};
use limpid::generate::{Options, Sampler};
use limpid::gpu::{GpuChoice, GpuDevice};
use limpid::receipt::Receipt;
use limpid::trace::Keep;
use limpid::train::Recipe;
use limpid::{Device, Error, Lm, Machine, Training};

fn near(what: &str, gpu: &[f32], cpu: &[f32]) {
    assert_eq!(gpu.len(), cpu.len(), "{what}");
    let size = cpu.iter().fold(1e-2f32, |m, v| m.max(v.abs()));
    for (i, (g, c)) in gpu.iter().zip(cpu).enumerate() {
        assert!((g - c).abs() <= 2e-5 * size, "{what}[{i}]: {g} on the gpu, {c} on the cpu, of {size}");
    }
}

#[test]
fn a_model_is_itself_on_a_gpu() {
    let gpu = || GpuDevice::shared(&GpuChoice::Best);
    if let Err(error) = gpu() {
        assert!(std::env::var_os("GPU_REQUIRED").is_none(), "{error}");
        return println!("not tested: {error}");
    }
    let folder = Folder::absent("on-gpu");
    let recipe = Recipe { steps: 20, batch_size: 4, context: 32, ..Recipe::preset("nano").unwrap() };
    let text = "to be or not to be, that is the question. ".repeat(60);
    let training = Training::preset("nano").unwrap().recipe(recipe).tokenizer("char").text(text.clone());
    training.folder(&folder.0).run().unwrap();
    let [cpu, gpu_lm] = [Device::Cpu, Device::Gpu]
        .map(|device| Lm::open(&folder.0).unwrap().with_machine(Machine { device, ..Machine::default() }));
    let greedy =
        Options { max_tokens: 24, sampler: Sampler { temperature: 0.0, ..Sampler::default() }, ..Options::default() };
    let written = cpu.generate("to be", &greedy).unwrap();
    assert_eq!(gpu_lm.generate("to be", &greedy).unwrap().tokens, written.tokens);

    // many at once, of different lengths, some with the same beginning: each as if it were alone
    let prompts = ["to be", "to be or", "question", "to be or not to be, that"];
    let options = |sample: usize| Options { max_tokens: 12, sample: sample as u64, ..Options::default() };
    let alone: Vec<Vec<u32>> =
        prompts.iter().enumerate().map(|(i, p)| gpu_lm.generate(p, &options(i)).unwrap().tokens).collect();
    let mut engine = gpu_lm.engine(&EngineLimits::new(gpu_lm.config(), 4, 256)).unwrap();
    let ids: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(i, prompt)| {
            let prompt = gpu_lm.encode(prompt).unwrap();
            engine
                .submit(EngineRequest { prompt, options: options(i), log_probs: None, reuse: true, steps: None })
                .unwrap()
        })
        .collect();
    let mut together = vec![vec![]; ids.len()];
    while engine
        .round(&mut |id, event| {
            if let EngineEvent::Done(sample) = event {
                together[ids.iter().position(|known| *known == id).unwrap()] = sample.tokens;
            }
            true
        })
        .unwrap()
    {}
    assert_eq!(together, alone);

    near(
        "embedding",
        &gpu_lm.embed("to be or", Pooling::Mean).unwrap(),
        &cpu.embed("to be or", Pooling::Mean).unwrap(),
    );
    let scores =
        [&gpu_lm, &cpu].map(|lm| lm.evaluate(&TextSource::of_text(text.clone())).unwrap().loss().unwrap() as f32);
    near("loss", &scores[..1], &scores[1..]);
    for name in ["blocks.1.attn.hook_pattern", "blocks.0.hook_resid_post.grad"] {
        let [on_gpu, on_cpu] = [&gpu_lm, &cpu].map(|lm| {
            lm.trace_ids(&lm.encode("to be or").unwrap(), Keep::Gradients).unwrap().get(name).unwrap().values
        });
        near(name, &on_gpu, &on_cpu);
    }
    let sample = gpu_lm.generate("to be", &greedy).unwrap();
    let prompt = gpu_lm.encode("to be").unwrap();
    let refused = Receipt::new(&gpu_lm, &prompt, &greedy, &sample).unwrap_err();
    assert!(matches!(refused, Error::NoReceipt(Device::Gpu)), "{refused}");

    gpu().unwrap().lose();
    let said = gpu_lm.generate("to be", &greedy).expect_err("its cache and its weights are gone");
    assert!(said.is_lost(), "{said}");
    assert_eq!(gpu_lm.generate("to be", &greedy).unwrap().tokens, written.tokens, "they are read again");
}

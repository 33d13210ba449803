//! Runs that are served while they train: `serve --follow`, and `train --serve`, whose page is the same server in the
//! training's process. Its port is opened before anything is trained, and it answers as soon as the run's folder has a
//! model.

#[cfg(feature = "serve")]
pub use served::{LivePage, followed};
#[cfg(not(feature = "serve"))]
pub use without::LivePage;

#[cfg(feature = "serve")]
mod served {
    use crate::options::Usage;
    use crate::{models, show};
    use anyhow::{Context, Result, bail};
    use limpid::checkpoint::Checkpoint;
    use limpid::config::Mask;
    use limpid::{Machine, TrainingPlan};
    use limpid_serve::{Follow, OpenPort, ServeError, ServeOptions, ServedAs, ServedModel, ServedTraining, Server};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    /// How often it is looked for a new checkpoint.
    const EVERY: Duration = Duration::from_secs(1);

    /// A run whose new checkpoints are served.
    pub fn followed(path: PathBuf, adapters: Vec<PathBuf>, verified: bool, how: ServedAs) -> Follow {
        let model = path.clone();
        let open = move || -> Result<Checkpoint, Box<dyn std::error::Error + Send + Sync>> {
            Ok(models::adapted(&model, &adapters, verified)?)
        };
        Follow { path, open: Box::new(open), how, every: EVERY }
    }

    /// The server of a run, which ends when this is dropped.
    pub struct LivePage {
        folder: PathBuf,
        url: String,
        how: ServedAs,
        port: Option<OpenPort>,
        server: Option<Server>,
    }

    impl LivePage {
        /// Opens the port, and says where.
        ///
        /// # Errors
        /// If it cannot be opened, or such a model not be served.
        pub fn open(address: &str, plan: &TrainingPlan, folder: &Path, stop: Arc<AtomicBool>) -> Result<LivePage> {
            let Some((host, port)) = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)))
            else {
                let example = "an address like 127.0.0.1:8080 or [::1]:0 (the port is 0 to 65535)";
                bail!(Usage(format!("--serve takes {example}, not {}", show::quoted(address))));
            };
            if plan.config.mask != Mask::Causal {
                return Err(ServeError::NotCausal).context("--serve");
            }
            let training = Some(ServedTraining { steps: plan.recipe.steps, floor: plan.entropy_floor(), stop });
            let options =
                ServeOptions { host: host.into(), port, drain: Duration::ZERO, training, ..ServeOptions::default() };
            let port = OpenPort::open(options).map_err(|error| match error {
                ServeError::Exposed(host) => Usage(format!(
                    "--serve {address}: other machines reach {host}, and `train` asks for no key; leave it out, and \
                     serve the run as it trains: `limpid serve RUN --follow --host {host} --api-key-file FILE`"
                ))
                .into(),
                other => anyhow::Error::from(other).context("--serve"),
            })?;
            let url = port.url();
            show::say(format_args!("watch the training at {url}; the page ends with it"));
            // what `limpid serve` answers with: the processor's bits, whatever trains
            let how = ServedAs {
                id: models::name(folder),
                machine: Machine { clock: plan.machine.clock, ..Machine::cpu(plan.machine.threads) },
                template: None,
            };
            Ok(LivePage { folder: folder.into(), url, how, port: Some(port), server: None })
        }

        /// Where it is.
        pub fn url(&self) -> &str {
            &self.url
        }

        /// Serves the model in the folder, unless one is served. Returns why not, if it cannot be.
        pub fn begin(&mut self) -> Option<String> {
            let port = self.port.take()?;
            let serve = || -> Result<Server> {
                let model = ServedModel::new(models::checkpoint(&self.folder, true)?, &self.how)?;
                let follow = followed(self.folder.clone(), vec![], true, self.how.clone());
                Ok(port.serve(model, Some(follow), Box::new(|_| {}))?)
            };
            match serve() {
                Ok(server) => self.server = Some(server),
                Err(why) => return Some(format!("the page is not served: {why:#}")),
            }
            None
        }
    }

    impl Drop for LivePage {
        fn drop(&mut self) {
            if let Some(server) = self.server.take() {
                server.stopper().stop();
                let _ = server.wait(); // the training has ended either way
            }
        }
    }
}

#[cfg(not(feature = "serve"))]
mod without {
    use crate::options::Usage;
    use anyhow::{Result, bail};
    use limpid::TrainingPlan;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// There is none.
    pub struct LivePage;

    impl LivePage {
        pub fn open(_: &str, _: &TrainingPlan, _: &Path, _: Arc<AtomicBool>) -> Result<LivePage> {
            bail!(Usage("--serve: this limpid was built without its server (the feature `serve`)".into()))
        }

        pub fn url(&self) -> &str {
            ""
        }

        pub fn begin(&mut self) -> Option<String> {
            None
        }
    }
}

//! `data fetch`: public texts by name, or any address, to files: resumed where a connection broke, checked by their SHA-256.

use crate::show::{self, Progress};
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A public text that goes by a name.
struct Known {
    name: &'static str,
    about: &'static str,
    /// Addresses, each with its SHA-256 where it is known.
    files: &'static [(&'static str, Option<&'static str>)],
}

const KNOWN: &[Known] = &[
    Known {
        name: "tinyshakespeare",
        about: "1.1 MB of Shakespeare, text",
        files: &[(
            "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            Some("86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
        )],
    },
    Known {
        name: "tinystories",
        about: "2 GB of stories for children, text (Eldan and Li 2023)",
        files: &[
            ("https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main/TinyStories-train.txt", None),
            ("https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main/TinyStories-valid.txt", None),
        ],
    },
    Known {
        name: "wikitext-103",
        about: "0.5 GB of Wikipedia, parquet (Merity et al. 2016)",
        files: &[
            (
                "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/wikitext-103-raw-v1/train-00000-of-00002.parquet",
                None,
            ),
            (
                "https://huggingface.co/datasets/Salesforce/wikitext/resolve/main/wikitext-103-raw-v1/train-00001-of-00002.parquet",
                None,
            ),
        ],
    },
    Known {
        name: "fineweb-edu",
        about: "2 GB of the 10-billion-token sample of FineWeb-Edu, parquet (Penedo et al. 2024)",
        files: &[(
            "https://huggingface.co/datasets/HuggingFaceFW/fineweb-edu/resolve/main/sample/10BT/000_00000.parquet",
            None,
        )],
    },
    Known {
        name: "openwebtext",
        about: "0.5 GB, a part of OpenWebText, parquet (Gokaslan and Cohen 2019)",
        files: &[(
            "https://huggingface.co/datasets/Skylion007/openwebtext/resolve/main/plain_text/train-00000-of-00080.parquet",
            None,
        )],
    },
];

fn names() -> String {
    KNOWN.iter().map(|k| format!("  {:<16} {}\n", k.name, k.about)).collect()
}

/// Download a public text, or any file by its address; run again, it goes on where it stopped.
#[derive(clap::Args, Debug)]
#[command(after_help = format!("Names:\n{}\nThen: limpid train --data FOLDER", names()))]
pub struct Args {
    /// One of the names below, or an address
    #[arg(value_name = "NAME|URL")]
    what: String,
    /// The folder to put it in [default: data/NAME, or data for an address]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What the file's SHA-256 must be (an address's)
    #[arg(long, value_name = "HEX")]
    sha256: Option<String>,
    /// Put the result on stdout as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let known = KNOWN.iter().find(|k| k.name == args.what.to_lowercase().replace('_', "-"));
    let (folder, files) = match known {
        Some(k) if args.sha256.is_none() => (
            Path::new("data").join(k.name),
            k.files.iter().map(|(u, s)| (u.to_string(), s.map(String::from))).collect(),
        ),
        Some(_) => bail!(crate::options::Usage("--sha256 is for one address, not for a name".into())),
        None if args.what.contains("://") => (PathBuf::from("data"), vec![(args.what.clone(), args.sha256.clone())]),
        None => {
            let near = limpid::nearest::nearest(&args.what, KNOWN.iter().map(|k| k.name));
            let near = near.map(|n| format!(": did you mean `{n}`?")).unwrap_or_default();
            bail!(crate::options::Usage(format!(
                "`{}` is neither a name nor an address{near}\nNames:\n{}",
                args.what,
                names()
            )))
        }
    };
    let folder = args.out.clone().unwrap_or(folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let asked = super::train::interrupt()?;
    let mut got = vec![];
    for (url, sha256) in files {
        let name = url.split(['?', '#']).next().and_then(|u| u.rsplit('/').next()).filter(|n| !n.is_empty());
        let path = folder.join(name.unwrap_or("download"));
        let stop = || asked.load(std::sync::atomic::Ordering::Relaxed);
        let found = fetch(&url, &path, sha256.as_deref(), args.json, &stop)?;
        if !args.json {
            let how = if found.kept { "was there" } else { "fetched" };
            eprintln!("{} {how}: {}, sha256 {}", path.display(), show::bytes(found.bytes), found.sha256);
        }
        got.push(
            serde_json::json!({ "path": path, "bytes": found.bytes, "sha256": found.sha256, "was_there": found.kept }),
        );
    }
    if args.json {
        return show::json(&serde_json::json!({ "folder": folder, "files": got }));
    }
    show::out(&format!("{}\n", folder.display()))
}

/// A file that is here.
#[derive(Debug)]
pub struct Fetched {
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
    /// Whether it was here before.
    pub kept: bool,
}

/// Brings `url` to `path`. What has come is kept beside it in `.partial`, with the server's mark of that version, so that the
/// same call goes on; a file that is whole is not fetched again.
pub fn fetch(url: &str, path: &Path, sha256: Option<&str>, quiet: bool, stop: &dyn Fn() -> bool) -> Result<Fetched> {
    let beside = |ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    if path.exists() {
        let (bytes, sum) = sum(path)?;
        return match sha256.filter(|wanted| !wanted.eq_ignore_ascii_case(&sum)) {
            None => Ok(Fetched { bytes, sha256: sum, kept: true }),
            Some(wanted) => {
                bail!("{} is there already, but its SHA-256 is {sum}, not {wanted}: remove it first", path.display())
            }
        };
    }
    if url.starts_with("https://") && !cfg!(feature = "https") {
        bail!(
            "this limpid was built without TLS: `curl -L -C - -o {} {url}` fetches it, or build with `--features https`",
            path.display()
        );
    }
    let (partial, mark) = (beside(".partial"), beside(".partial.etag"));
    let here = fs::metadata(&partial).map_or(0, |m| m.len());
    let etag = fs::read_to_string(&mark).unwrap_or_default();
    let config = ureq::Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(60)))
        .http_status_as_error(false);
    // the system's certificates (and SSL_CERT_FILE), so that a company's own are known
    #[cfg(feature = "https")]
    let config =
        config.tls_config(ureq::tls::TlsConfig::builder().root_certs(ureq::tls::RootCerts::PlatformVerifier).build());
    let agent: ureq::Agent = config.build().into();
    let mut request = agent.get(url);
    if here > 0 && !etag.is_empty() {
        request = request.header("Range", format!("bytes={here}-")).header("If-Range", &etag);
    }
    let host = url.split("://").nth(1).and_then(|u| u.split('/').next()).unwrap_or(url);
    let response = request.call().map_err(|e| match e {
        ureq::Error::HostNotFound => anyhow::anyhow!("{host} cannot be found: is this machine offline?"),
        ureq::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => anyhow::anyhow!("{host} refuses connections"),
        ureq::Error::Io(e) if e.kind() == ErrorKind::InvalidData => {
            anyhow::anyhow!("{host} has no certificate that this system trusts ({e}): SSL_CERT_FILE can name more")
        }
        e => anyhow::anyhow!("{host} cannot be reached ({e}): is this machine offline?"),
    })?;
    let status = response.status().as_u16();
    let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(String::from);
    let from = match status {
        206 if header("content-range").is_some_and(|r| r.starts_with(&format!("bytes {here}-"))) => here,
        200 => 0,
        404 => bail!("{url}: the server has no such file (404)"),
        other => bail!("{url}: the server answers {other}"),
    };
    let length = header("content-length").and_then(|n| n.parse::<u64>().ok());
    let total = length.map(|n| n + from);
    let promised = header("x-linked-etag").or(header("etag")).map(|e| e.trim_matches('"').to_lowercase());
    let promised = promised.filter(|e| e.len() == 64 && e.bytes().all(|b| b.is_ascii_hexdigit()));
    fs::write(&mark, header("etag").unwrap_or_default()).with_context(|| mark.display().to_string())?;
    let mut file = OpenOptions::new().create(true).write(true).truncate(from == 0).append(from > 0).open(&partial);
    let file = file.as_mut().map_err(|e| anyhow::anyhow!("{}: {e}", partial.display()))?;
    let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
    let progress = Progress::of("MB", total.unwrap_or(0) >> 20, quiet);
    let (mut at, mut buffer, mut told) = (from, vec![0; 1 << 16], u64::MAX);
    let broken = loop {
        if stop() {
            progress.done();
            bail!("stopped at {}: the same command goes on from here", show::bytes(at));
        }
        match body.read(&mut buffer) {
            Ok(0) => break None,
            Ok(n) => {
                file.write_all(&buffer[..n]).with_context(|| partial.display().to_string())?;
                at += n as u64;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => break Some(e),
        }
        if at >> 20 != told {
            told = at >> 20;
            progress.step(told, || path.file_name().unwrap_or_default().display().to_string());
        }
    };
    progress.done();
    file.sync_all().with_context(|| partial.display().to_string())?;
    if broken.is_some() || total.is_some_and(|total| total != at) {
        let of = total.map(|t| format!(" of {}", show::bytes(t))).unwrap_or_default();
        let why = broken.map(|e| format!(" ({e})")).unwrap_or_default();
        bail!("the connection ended after {}{of}{why}: the same command goes on from there", show::bytes(at));
    }
    let (bytes, sum) = sum(&partial)?;
    if let Some(wanted) = sha256.map(str::to_lowercase).or(promised).filter(|wanted| *wanted != sum) {
        fs::remove_file(&partial)?;
        bail!("{url}: its SHA-256 is {sum}, it should be {wanted}; what came was thrown away, try again");
    }
    fs::rename(&partial, path).with_context(|| path.display().to_string())?;
    _ = fs::remove_file(&mark);
    Ok(Fetched { bytes, sha256: sum, kept: false })
}

/// Size and SHA-256 of a file.
fn sum(path: &Path) -> Result<(u64, String)> {
    let read = || -> std::io::Result<(u64, String)> {
        let (mut file, mut hash, mut bytes, mut buffer) = (File::open(path)?, Sha256::new(), 0, vec![0; 1 << 16]);
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n => {
                    hash.update(&buffer[..n]);
                    bytes += n as u64;
                }
            }
        }
        Ok((bytes, hash.finalize().iter().map(|b| format!("{b:02x}")).collect()))
    };
    read().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    /// A server of one file that breaks off after so many bytes of each answer, and notes the ranges asked for.
    fn serve(body: Vec<u8>, etag: &'static str, most: usize) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/text.txt", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(vec![]));
        let noted = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(16) {
                let mut stream = stream.unwrap();
                let lines: Vec<String> =
                    BufReader::new(&stream).lines().map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
                let find = |name: &str| {
                    lines
                        .iter()
                        .find(|l| l.to_lowercase().starts_with(name))
                        .map(|l| l[name.len()..].trim().to_string())
                };
                let range = find("range:").filter(|_| find("if-range:").is_none_or(|e| e == etag));
                let start = range.as_ref().map_or(0, |r| r["bytes=".len()..r.len() - 1].parse::<usize>().unwrap());
                noted.lock().unwrap().push(range.unwrap_or_default());
                if lines[0].contains("/nothing") {
                    write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
                    continue;
                }
                let rest = &body[start..];
                let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
                let range = format!("content-range: bytes {start}-{}/{}\r\n", body.len() - 1, body.len());
                let head = format!(
                    "HTTP/1.1 {status}\r\netag: {etag}\r\n{range}content-length: {}\r\nconnection: close\r\n\r\n",
                    rest.len()
                );
                stream.write_all(head.as_bytes()).unwrap();
                _ = stream.write_all(&rest[..most.min(rest.len())]);
            }
        });
        (url, seen)
    }

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("limpid-fetch-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_broken_download_goes_on_and_is_whole() {
        let body: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        let (url, seen) = serve(body.clone(), "\"v1\"", 150_000);
        let path = folder("resume").join("text.txt");
        let go = || fetch(&url, &path, None, true, &|| false);
        for _ in 0..2 {
            let error = go().unwrap_err().to_string();
            assert!(error.contains("the same command goes on"), "{error}");
            assert!(!path.exists());
        }
        let found = go().unwrap();
        assert_eq!((found.bytes, found.kept), (400_000, false));
        assert!(fs::read(&path).unwrap() == body);
        assert_eq!(*seen.lock().unwrap(), ["", "bytes=150000-", "bytes=300000-"]);
        assert!(go().unwrap().kept && seen.lock().unwrap().len() == 3, "a whole file is not fetched again");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_that_changed_is_begun_again_and_a_wrong_one_refused() {
        let path = folder("changed").join("text.txt");
        let (old, _) = serve(vec![b'a'; 1000], "\"v1\"", 400);
        fetch(&old, &path, None, true, &|| false).unwrap_err();
        let (new, seen) = serve(vec![b'b'; 900], "\"v2\"", 900);
        let error = fetch(&new, &path, Some(&"0".repeat(64)), true, &|| false).unwrap_err().to_string();
        assert!(error.contains("it should be 000"), "{error}");
        assert_eq!(*seen.lock().unwrap(), [""], "another version is not continued");
        let found = fetch(&new, &path, None, true, &|| false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![b'b'; 900]);
        let error = fetch(&new, &path, Some(&"0".repeat(64)), true, &|| false).unwrap_err().to_string();
        assert!(error.contains("is there already") && error.contains(&found.sha256), "{error}");
    }

    #[test]
    fn what_cannot_be_had_is_said_at_once() {
        let path = folder("errors").join("x");
        let (url, _) = serve(vec![], "\"v\"", 0);
        let say = |url: &str| fetch(url, &path, None, true, &|| false).unwrap_err().to_string();
        assert!(say(&url.replace("text.txt", "nothing")).contains("404"));
        assert!(say("http://127.0.0.1:1/x").contains("refuses connections"));
        assert!(say("http://no-such-host.invalid/x").contains("offline"));
        if !cfg!(feature = "https") {
            assert!(say("https://example.org/x").contains("curl -L"));
        }
        let stopped = fetch(&serve(vec![1; 100], "\"v\"", 100).0, &path, None, true, &|| true).unwrap_err().to_string();
        assert!(stopped.contains("the same command goes on"), "{stopped}");
    }
}

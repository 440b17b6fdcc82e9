use super::*;

#[test]
fn the_default_is_valid_and_each_setting_out_of_range_is_named() {
    let ok = EngineConfig::default();
    assert_eq!(ok.validate(), Ok(()));
    let set = Thresholds::default();
    let with = |thresholds| EngineConfig {
        thresholds,
        ..ok.clone()
    };
    assert_eq!(with(set).validate(), Ok(()));
    let bad = [
        (
            "name",
            EngineConfig {
                name: "two words".into(),
                ..ok.clone()
            },
        ),
        (
            "name",
            EngineConfig {
                name: String::new(),
                ..ok.clone()
            },
        ),
        (
            "ranks",
            EngineConfig {
                ranks: 0,
                ..ok.clone()
            },
        ),
        (
            "ranks",
            EngineConfig {
                ranks: 1025,
                ..ok.clone()
            },
        ),
        (
            "time_scale",
            EngineConfig {
                time_scale: -1.0,
                ..ok.clone()
            },
        ),
        (
            "time_scale",
            EngineConfig {
                time_scale: f64::NAN,
                ..ok.clone()
            },
        ),
        (
            "max_queue",
            EngineConfig {
                max_queue: 0,
                ..ok.clone()
            },
        ),
        (
            "target_fill",
            with(Thresholds {
                target_fill: 1.01,
                ..set
            }),
        ),
        (
            "kv_high_watermark",
            with(Thresholds {
                kv_high_watermark: f64::NAN,
                ..set
            }),
        ),
        (
            "token_usage_low_watermark",
            with(Thresholds {
                token_usage_low_watermark: Some(2.0),
                ..set
            }),
        ),
        (
            "max_queue_ms",
            with(Thresholds {
                max_queue_ms: Some(-1.0),
                ..set
            }),
        ),
        (
            "ttft_max_ticks",
            with(Thresholds {
                ttft_max_ticks: 0,
                ..set
            }),
        ),
        (
            "partial_max_ticks",
            with(Thresholds {
                partial_max_ticks: 0,
                ..set
            }),
        ),
        (
            "stall_ticks",
            with(Thresholds {
                stall_ticks: 0,
                ..set
            }),
        ),
    ];
    for (setting, config) in bad {
        assert_eq!(config.validate().unwrap_err().setting, setting);
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused_with_both_numbers() {
    let ok = EngineConfig {
        prefill_delayer: true,
        ..EngineConfig::default()
    };
    assert_eq!(ok.validate(), Ok(()));
    let set = ok.thresholds;
    let with = |thresholds| EngineConfig {
        thresholds,
        ..ok.clone()
    };
    let bad = [
        (
            EngineConfig {
                collective_timeout_ms: 4,
                ..ok.clone()
            },
            ["step_base_us = 5000", "found 4"],
        ),
        (
            EngineConfig {
                collective_timeout_ms: 86_400_001,
                ..ok.clone()
            },
            ["0 to 86400000", "found 86400001"],
        ),
        (
            with(Thresholds {
                kv_high_watermark: 0.0,
                ..set
            }),
            ["`kv_high_watermark`", "found 0"],
        ),
        (
            with(Thresholds {
                token_usage_low_watermark: Some(0.95),
                ..set
            }),
            ["less than kv_high_watermark = 0.9", "found 0.95"],
        ),
        (
            with(Thresholds {
                max_queue_ms: Some(0.0),
                ..set
            }),
            ["`max_queue_ms`", "found 0"],
        ),
    ];
    for (config, wanted) in bad {
        let error = config.validate().unwrap_err().to_string();
        for part in wanted {
            assert!(error.contains(part), "{part}: {error}");
        }
        // What only the delayer minds is no fault while it is off.
        let off = EngineConfig {
            prefill_delayer: false,
            ..config
        };
        assert_eq!(
            off.validate().is_ok(),
            !error.contains("collective_timeout")
        );
    }
    let no_end = EngineConfig {
        collective_timeout_ms: 0,
        ..ok.clone()
    };
    assert_eq!(no_end.validate(), Ok(()));
}
